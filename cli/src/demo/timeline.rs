//! When what happened: the transitions of both endpoints, and what their users did.

use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};

use xio_proto::MACHINES;
use xio_sim::{Act, Object, Record, TransitionStep};

use crate::output::Nanos;

/// What a user did or was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Note {
    /// Virtual time in nanoseconds.
    pub(super) at: u64,
    /// The client's user; otherwise the server's.
    pub(super) is_client: bool,
    /// It was the cause of what the endpoint did at that time, not its effect.
    pub(super) is_cause: bool,
    /// In words.
    pub(super) text: String,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    at: u64,
    /// Among lines of the same time.
    rank: u8,
    is_client: bool,
    what: &'static str,
    text: String,
}

/// A timeline in the making.
#[derive(Debug)]
pub(super) struct Timeline {
    lines: Vec<Line>,
    records: Receiver<Record>,
}

/// Endpoint number of the client in the trace.
const CLIENT: u32 = 0;

impl Timeline {
    /// An empty timeline, and where lines of a trace are to go.
    pub(super) fn new() -> (Self, impl FnMut(&Record) + Send + 'static) {
        let (sender, records): (Sender<Record>, _) = channel();
        let sink = move |record: &Record| {
            let life = matches!(
                record.object,
                Object::Nexus(_) | Object::Session(_) | Object::Connection(_)
            );
            let is_transition = record.act == Act::Transition;
            if life && is_transition {
                tracing::debug!("{record}");
            } else {
                tracing::trace!("{record}");
            }
            if life && is_transition && moves(record) {
                // Nobody takes it any more: the demo is over.
                let _ = sender.send(*record);
            }
        };
        let lines = Vec::new();
        (Self { lines, records }, sink)
    }

    /// Takes what has happened so far, with what users noted, and returns it as text. Times count
    /// from `start`.
    pub(super) fn take(&mut self, notes: &[Note], start: u64) -> String {
        self.lines.extend(notes.iter().map(|note| Line {
            at: note.at,
            rank: if note.is_cause { 0 } else { 2 },
            is_client: note.is_client,
            what: "user",
            text: note.text.clone(),
        }));
        self.lines.extend(self.records.try_iter().map(transition));
        self.lines.sort_by_key(|line| (line.at, line.rank));
        let mut text = String::new();
        for line in self.lines.drain(..) {
            let side = if line.is_client { "client" } else { "server" };
            let after = Nanos(line.at.saturating_sub(start)).to_string();
            let _ = writeln!(text, "{after:>12}  {side}  {:<12}{}", line.what, line.text);
        }
        text
    }
}

/// True when a transition leads to another state.
fn moves(record: &Record) -> bool {
    let step = TransitionStep::unpack(record.a);
    step.state != step.next
}

fn transition(record: Record) -> Line {
    let step = TransitionStep::unpack(record.a);
    let machine = &MACHINES[usize::from(step.machine)];
    let name = |names: &[&'static str], n: u8| names.get(usize::from(n)).copied().unwrap_or("?");
    let input = name(machine.inputs, step.input);
    let next = name(machine.states, step.next);
    let words = words(machine.name, next);
    Line {
        at: record.at,
        rank: 1,
        is_client: record.endpoint == CLIENT,
        what: machine.name,
        text: format!("{:<36}{words}", format!("{input} => {next}"))
            .trim_end()
            .to_owned(),
    }
}

/// What a state means, for who sees it for the first time.
fn words(machine: &str, state: &str) -> &'static str {
    match (machine, state) {
        ("nexus", "Resolving") => "resolves the address",
        ("nexus", "Routing") => "resolves the route",
        ("nexus", "Creating" | "Requested") => "makes a queue pair",
        ("nexus", "Priming" | "ServerPriming") => "posts the first receive",
        ("nexus", "Connecting") => "asks to connect",
        ("nexus", "Accepting") => "accepts",
        ("nexus", "Handshaking") => "asks for the transport setup",
        ("nexus", "Awaiting") => "waits for the transport setup",
        ("nexus", "Online") => "sizes and credits are agreed",
        ("nexus", "Idle") => "no connection is on it",
        ("nexus", "Disconnecting") => "disconnects",
        ("nexus", "Draining") => "waits for what is still posted",
        ("nexus", "Destroying") => "destroys the queue pair",
        ("session", "Requested") => "asks the user",
        ("connection", "SetupSent") => "sends the session setup",
        ("connection", "FinWait1" | "LastAck") => "sends FIN",
        ("connection", "FinWait2") => "FIN is answered",
        ("connection", "TimeWait") => "answers the peer's FIN",
        (_, "Online") => "messages may flow",
        (_, "Vacant") => "gone",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_the_order_of_their_times() {
        let (mut timeline, mut sink) = Timeline::new();
        let row = &MACHINES[0].rows[0];
        let step = TransitionStep {
            machine: 0,
            state: row.from,
            input: row.input,
            next: row.next,
        };
        let mut record = Record {
            at: 5_000,
            endpoint: 0,
            object: Object::Nexus(0),
            act: Act::Transition,
            a: step.pack(),
            b: 0,
        };
        sink(&record);
        record.object = Object::Task(0);
        sink(&record);
        let note = Note {
            at: 2_000,
            is_client: false,
            is_cause: true,
            text: "waits".into(),
        };
        let text = timeline.take(&[note], 1_000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[0], "     1.00 us  server  user        waits");
        assert!(lines[1].contains("client  nexus       Open => Resolving"));
        assert_eq!(timeline.take(&[], 0), "");
    }
}
