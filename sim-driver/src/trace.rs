//! What happened, one line per event, and a rolling hash over it.

use core::fmt;
use std::collections::VecDeque;

use xio_proto::{Applied, CmKind, Input, MACHINES, WorkStatus};
use xio_record::{Recorder, Tape};

use crate::check::{Check, Watch};

/// What a line is about.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Object {
    /// The world as a whole.
    World,
    /// A device.
    Nic(u32),
    /// A queue pair with its connection id.
    QueuePair(u32),
    /// A socket.
    Socket(u32),
    /// A listener.
    Listener(u32),
    /// A transport connection of the core.
    Nexus(u32),
    /// A session of the core.
    Session(u32),
    /// A connection of the core.
    Connection(u32),
    /// A task of the core.
    Task(u32),
    /// A socket of the core.
    Stream(u32),
    /// An actor of the workload.
    Actor(u32),
}

impl Object {
    const fn parts(self) -> (&'static str, u32) {
        match self {
            Self::World => ("world", 0),
            Self::Nic(n) => ("nic", n),
            Self::QueuePair(n) => ("qp", n),
            Self::Socket(n) => ("sock", n),
            Self::Listener(n) => ("listener", n),
            Self::Nexus(n) => ("nexus", n),
            Self::Session(n) => ("session", n),
            Self::Connection(n) => ("conn", n),
            Self::Task(n) => ("task", n),
            Self::Stream(n) => ("stream", n),
            Self::Actor(n) => ("actor", n),
        }
    }
    const fn code(self) -> u64 {
        let kind: u64 = match self {
            Self::World => 0,
            Self::Nic(_) => 1,
            Self::QueuePair(_) => 2,
            Self::Socket(_) => 3,
            Self::Listener(_) => 4,
            Self::Nexus(_) => 5,
            Self::Session(_) => 6,
            Self::Connection(_) => 7,
            Self::Task(_) => 8,
            Self::Actor(_) => 9,
            Self::Stream(_) => 10,
        };
        kind << 32 | self.parts().1 as u64
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, number) = self.parts();
        if *self == Self::World {
            f.pad(name)
        } else {
            f.pad(&format!("{name}{number}"))
        }
    }
}

macro_rules! acts {
    ($($act:ident = $text:literal ($a:literal $(, $b:literal)?);)+) => {
        /// What happened to an object. The two numbers of a line mean what the table says.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Act { $($act),+ }

        impl Act {
            const fn text(self) -> (&'static str, &'static str, &'static str) {
                match self { $(Self::$act => ($text, $a, acts!(@b $($b)?))),+ }
            }
        }
    };
    (@b) => { "" };
    (@b $b:literal) => { $b };
}

acts! {
    SendPosted = "send posted" ("wr", "bytes");
    WritePosted = "write posted" ("wr", "bytes");
    ReadPosted = "read posted" ("wr", "bytes");
    RecvPosted = "receive posted" ("wr");
    PostFailed = "post failed" ("wr", "errno");
    Arrived = "arrived" ("wr", "bytes");
    ReceiverNotReady = "receiver not ready" ("wr", "tries");
    Unanswered = "unanswered" ("wr", "tries");
    Completed = "completed" ("wr", "status");
    CompletionLost = "completion lost" ("wr", "status");
    ErrorState = "error state" ("status");
    Created = "created" ("errno");
    CmCall = "call" ("call", "errno");
    CmEvent = "event" ("cm", "errno");
    CmMessage = "message on its way" ("message");
    Listening = "listening" ("port", "errno");
    Destroyed = "destroyed" ("");
    LinkDown = "link down" ("ns");
    LinkUp = "link up" ("");
    Stalled = "stalled" ("ns");
    Died = "died" ("");
    Removed = "device removed" ("");
    Restored = "device restored" ("");
    AddressChanged = "address changed" ("");
    Connecting = "connecting" ("port");
    Connected = "connected" ("port");
    ConnectFailed = "connect failed" ("errno");
    Accepted = "accepted" ("port");
    Dropped = "connect request dropped" ("port");
    Refused = "connect request refused by the core" ("need", "have");
    Segment = "bytes delivered" ("bytes", "window");
    Wrote = "bytes written" ("bytes", "room");
    Read = "bytes read" ("bytes", "left");
    EndOfStream = "end of stream" ("");
    ResetSent = "reset" ("");
    FrameDone = "frame written" ("wr", "bytes");
    Closed = "closed" ("");
    ShutDown = "shut down" ("");
    Transition = "transition" ("step");
    Input = "input" ("kind", "value");
    Control = "control" ("kind", "value");
    Work = "work" ("kind", "wr");
    UserEvent = "event to user" ("kind", "user");
    UserCommand = "command" ("kind", "user");
    Fault = "fault" ("site", "value");
    Violation = "VIOLATION" ("kind", "value");
}

/// One line.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Virtual time in nanoseconds.
    pub at: u64,
    /// The endpoint, or [`Record::NOBODY`].
    pub endpoint: u32,
    /// What it is about.
    pub object: Object,
    /// What happened.
    pub act: Act,
    /// First number; its meaning depends on the act.
    pub a: u64,
    /// Second number.
    pub b: u64,
}

impl Record {
    /// In place of an endpoint.
    pub const NOBODY: u32 = u32::MAX;
}

fn field(f: &mut fmt::Formatter<'_>, label: &str, value: u64) -> fmt::Result {
    match label {
        "" => Ok(()),
        "wr" => write!(f, " wr={value:#x}"),
        "cm" => write!(f, " {:?}", CmKind::from_number(value as u32)),
        "status" => write!(f, " {}", status_name(value)),
        "errno" if value == 0 => f.write_str(" ok"),
        "errno" => write!(f, " errno={}", value as i64),
        "step" => write!(f, " {}", TransitionStep::unpack(value)),
        "call" => write!(f, " {}", crate::fabric::CmCall::name(value)),
        "message" => write!(f, " {}", crate::fabric::CmMessageKind::name(value)),
        "site" => {
            let site = crate::swarm::Site::ALL.get(value as usize);
            write!(f, " {}", site.map_or("?", |site| site.name()))
        }
        _ => write!(f, " {label}={value}"),
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, a, b) = self.act.text();
        let (seconds, nanos) = (self.at / 1_000_000_000, self.at % 1_000_000_000);
        write!(f, "{seconds:>5}.{nanos:09} ")?;
        if self.endpoint == Self::NOBODY {
            write!(f, "--  ")?;
        } else {
            write!(f, "e{:<2} ", self.endpoint)?;
        }
        write!(f, "{:<10} {text}", self.object)?;
        field(f, a, self.a)?;
        field(f, b, self.b)
    }
}

/// A number for a completion status, as traces keep it.
pub const fn status_code(status: WorkStatus) -> u64 {
    match status {
        WorkStatus::Success => 0,
        WorkStatus::Flushed => 1,
        WorkStatus::RetryExceeded => 2,
        WorkStatus::RnrRetryExceeded => 3,
        WorkStatus::RemoteAccess => 4,
        WorkStatus::LocalAccess => 5,
        WorkStatus::Other(n) => 256 + n as u64,
        _ => 6,
    }
}

const fn status_name(code: u64) -> &'static str {
    match code {
        0 => "success",
        1 => "flushed",
        2 => "retry exceeded",
        3 => "rnr retry exceeded",
        4 => "remote access",
        5 => "local access",
        _ => "other error",
    }
}

/// Where lines go.
type Sink = Box<dyn FnMut(&Record) + Send>;

/// Keeps the hash always, and lines when asked to.
#[derive(Default)]
pub struct Tracer {
    hash: u64,
    count: u64,
    keep: usize,
    last: VecDeque<Record>,
    sink: Option<Sink>,
}

impl Tracer {
    const PRIME: u64 = 0x0000_0100_0000_01b3;

    /// A tracer that keeps the hash and nothing else.
    pub fn new() -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            ..Self::default()
        }
    }
    /// Keeps the last `lines` lines for [`last`](Self::last).
    pub fn keep(&mut self, lines: usize) {
        self.keep = lines;
        self.last.reserve(lines);
    }
    /// Gives every line to `sink` as it happens.
    pub fn print_to(&mut self, sink: impl FnMut(&Record) + Send + 'static) {
        self.sink = Some(Box::new(sink));
    }
    /// True when lines are wanted, so that costly ones are worth making.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.keep != 0 || self.sink.is_some()
    }
    /// Hash of everything so far: FNV-1a over 64-bit words with a fold, the same everywhere.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// Lines so far.
    pub fn count(&self) -> u64 {
        self.count
    }
    /// The lines kept, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &Record> {
        self.last.iter()
    }

    #[inline]
    fn mix(&mut self, word: u64) {
        let h = (self.hash ^ word).wrapping_mul(Self::PRIME);
        self.hash = h ^ h >> 32;
    }

    /// Takes a line.
    #[inline]
    pub fn record(&mut self, record: Record) {
        self.count += 1;
        self.mix(record.at);
        self.mix(u64::from(record.endpoint) << 8 | record.act as u64);
        self.mix(record.object.code());
        self.mix(record.a);
        self.mix(record.b);
        if self.is_on() {
            self.show(record);
        }
    }

    /// Takes a line that is for readers only: it does not count, and the hash ignores it.
    pub fn show_only(&mut self, record: Record) {
        if self.is_on() {
            self.show(record);
        }
    }

    #[cold]
    fn show(&mut self, record: Record) {
        if let Some(sink) = &mut self.sink {
            sink(&record);
        }
        if self.keep != 0 {
            if self.last.len() == self.keep {
                self.last.pop_front();
            }
            self.last.push_back(record);
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracer({:#018x} after {})", self.hash, self.count)
    }
}

/// One transition of a core's machine, as a line keeps it in one number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TransitionStep {
    /// Index in [`MACHINES`].
    pub machine: u8,
    /// State it starts from.
    pub state: u8,
    /// What came.
    pub input: u8,
    /// State it leads to.
    pub next: u8,
}

impl TransitionStep {
    /// As one number.
    pub const fn pack(self) -> u64 {
        u32::from_le_bytes([self.machine, self.state, self.input, self.next]) as u64
    }
    /// Out of one number.
    pub const fn unpack(value: u64) -> Self {
        let [machine, state, input, next] = (value as u32).to_le_bytes();
        Self {
            machine,
            state,
            input,
            next,
        }
    }
}

impl fmt::Display for TransitionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(machine) = MACHINES.get(usize::from(self.machine)) else {
            return f.write_str("?");
        };
        let name =
            |names: &'static [&'static str], n: u8| names.get(usize::from(n)).unwrap_or(&"?");
        write!(
            f,
            "{} + {} => {}",
            name(machine.states, self.state),
            name(machine.inputs, self.input),
            name(machine.states, self.next)
        )
    }
}

/// Observes a core: counts every transition and every mark, and keeps transitions for the trace
/// when asked to.
#[derive(Debug)]
pub struct MarkTrace {
    /// Per machine: how often each (state, input) was taken.
    taken: [Vec<u32>; MACHINES.len()],
    marks: Vec<(&'static str, u64)>,
    logging: bool,
    log: Vec<(u32, TransitionStep)>,
    /// Attempts to make it anew, by connection.
    attempts: Vec<u32>,
    recorder: Option<Box<Recorder<Tape>>>,
    watch: Option<Box<Watch>>,
}

impl Default for MarkTrace {
    fn default() -> Self {
        Self::new()
    }
}

/// States of a connection that waits for a frame of its close.
const CLOSING: [&str; 4] = ["FinWait1", "FinWait2", "Closing", "LastAck"];
/// What begins an attempt to make a connection anew.
const AGAIN: &str = "Again";
/// What ends the waiting when the frame does not come.
const IN_VAIN: [&str; 2] = ["Deadline", "Lost"];

impl MarkTrace {
    /// Nothing taken, nothing hit.
    pub fn new() -> Self {
        Self {
            taken: MACHINES.map(|m| vec![0; m.states.len() * m.inputs.len()]),
            marks: Vec::new(),
            logging: false,
            log: Vec::new(),
            attempts: Vec::new(),
            recorder: None,
            watch: None,
        }
    }
    /// Judges what the user hears from now on, which is the beginning.
    pub fn watch(&mut self) {
        self.watch = Some(Box::default());
    }
    /// What the user heard and was not to hear, if that is judged.
    pub fn breaches(&self) -> &[(Check, String)] {
        self.watch.as_deref().map_or(&[], Watch::breaches)
    }
    /// Records inputs from now on, which is the beginning.
    pub fn record(&mut self, recorder: Recorder<Tape>) {
        self.recorder = Some(Box::new(recorder));
    }
    /// What records, if something does.
    pub fn recorder(&mut self) -> Option<&mut Recorder<Tape>> {
        self.recorder.as_deref_mut()
    }
    /// Turns the log of transitions on or off.
    pub fn set_logging(&mut self, on: bool) {
        self.logging = on;
    }
    /// Takes what was logged since the last call: object index and transition.
    pub fn drain_log(&mut self) -> std::vec::Drain<'_, (u32, TransitionStep)> {
        self.log.drain(..)
    }
    /// How often `machine` took `input` in `state`.
    pub fn taken(&self, machine: usize, state: u8, input: u8) -> u32 {
        let inputs = MACHINES[machine].inputs.len();
        self.taken[machine][usize::from(state) * inputs + usize::from(input)]
    }
    /// Marks that were hit, with counts, in the order of their first hit.
    pub fn marks(&self) -> &[(&'static str, u64)] {
        &self.marks
    }
    /// How many attempts to make a connection anew have begun, by its index: those of all that had
    /// the index.
    pub fn attempts(&self, index: usize) -> u32 {
        self.attempts.get(index).copied().unwrap_or(0)
    }
    /// Adds another observer's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.taken.iter_mut().zip(&other.taken) {
            for (a, b) in mine.iter_mut().zip(theirs) {
                *a = a.saturating_add(*b);
            }
        }
        for &(name, count) in &other.marks {
            self.hit(name, count);
        }
    }
    /// How often a connection waited in vain for a part of its close.
    pub fn closes_given_up(&self) -> u32 {
        let mut times = 0;
        for (number, machine) in MACHINES.iter().enumerate() {
            let rows = machine.rows.iter().filter(|_| machine.name == "connection");
            times += rows
                .filter(|row| IN_VAIN.contains(&machine.inputs[usize::from(row.input)]))
                .filter(|row| CLOSING.contains(&machine.states[usize::from(row.from)]))
                .map(|row| self.taken(number, row.from, row.input))
                .sum::<u32>();
        }
        times
    }
    /// Declared rows that nothing took and that are not declared unreachable, as
    /// `machine: state + input`.
    pub fn rows_missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for (number, machine) in MACHINES.iter().enumerate() {
            for row in machine.rows {
                if row.unreachable.is_none() && self.taken(number, row.from, row.input) == 0 {
                    missed.push(format!(
                        "{}: {} + {}",
                        machine.name,
                        machine.states[usize::from(row.from)],
                        machine.inputs[usize::from(row.input)]
                    ));
                }
            }
        }
        missed
    }

    /// What was taken although it is declared unreachable, or is no row at all.
    pub fn rows_unexpected(&self) -> Vec<String> {
        let mut unexpected = Vec::new();
        for (number, machine) in MACHINES.iter().enumerate() {
            for (place, _) in self.taken[number]
                .iter()
                .enumerate()
                .filter(|(_, n)| **n > 0)
            {
                let inputs = machine.inputs.len();
                let (state, input) = (place / inputs, place % inputs);
                let is = |row: &&xio_proto::Row| {
                    usize::from(row.from) == state && usize::from(row.input) == input
                };
                let row = machine.rows.iter().find(is);
                if row.is_none_or(|row| row.unreachable.is_some()) {
                    let (state, input) = (machine.states[state], machine.inputs[input]);
                    unexpected.push(format!("{}: {state} + {input}", machine.name));
                }
            }
        }
        unexpected
    }

    #[cold]
    fn count_attempt(&mut self, index: usize) {
        if self.attempts.len() <= index {
            self.attempts.resize(index + 1, 0);
        }
        self.attempts[index] += 1;
    }

    fn hit(&mut self, name: &'static str, count: u64) {
        match self.marks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, hits)) => *hits += count,
            None => self.marks.push((name, count)),
        }
    }
}

impl xio_proto::Trace for MarkTrace {
    const RECORDS: bool = true;

    fn is_recording(&self) -> bool {
        self.recorder.is_some() || self.watch.is_some()
    }
    fn input(&mut self, input: &Input<'_>) {
        if let Some(watch) = &mut self.watch {
            watch.saw(input);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.input(input);
        }
    }
    fn output(&mut self, applied: &Applied, frame: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.came(applied);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.output(applied, frame);
        }
    }
    fn transition(&mut self, machine: u8, index: u32, state: u8, input: u8, next: u8) {
        let number = usize::from(machine);
        let inputs = MACHINES[number].inputs.len();
        self.taken[number][usize::from(state) * inputs + usize::from(input)] += 1;
        if MACHINES[number].name == "connection"
            && MACHINES[number].inputs[usize::from(input)] == AGAIN
        {
            self.count_attempt(index as usize);
        }
        if self.logging {
            let step = TransitionStep {
                machine,
                state,
                input,
                next,
            };
            self.log.push((index, step));
        }
    }
    fn mark(&mut self, name: &'static str) {
        self.hit(name, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xio_proto::Trace as _;

    fn line(at: u64, a: u64) -> Record {
        Record {
            at,
            endpoint: 1,
            object: Object::QueuePair(3),
            act: Act::Completed,
            a,
            b: 1,
        }
    }

    #[test]
    fn lines_can_be_read() {
        assert_eq!(
            line(1_000_000_123, 0x20).to_string(),
            "    1.000000123 e1  qp3        completed wr=0x20 flushed"
        );
    }

    #[test]
    fn hash_does_not_depend_on_being_shown() {
        let mut quiet = Tracer::new();
        let mut shown = Tracer::new();
        shown.keep(2);
        for n in 0..5 {
            quiet.record(line(n, n));
            shown.record(line(n, n));
        }
        assert_eq!(quiet.hash(), shown.hash());
        assert_eq!(shown.last().map(|r| r.at).collect::<Vec<_>>(), [3, 4]);
        let before = quiet.hash();
        quiet.record(line(5, 6));
        shown.record(line(5, 7));
        assert_ne!(quiet.hash(), shown.hash());
        assert_ne!(quiet.hash(), before);
    }

    #[test]
    fn marks_and_rows_are_counted() {
        let mut a = MarkTrace::new();
        let all = a.rows_missed().len();
        let row = &MACHINES[0].rows[0];
        a.transition(0, 7, row.from, row.input, row.next);
        a.mark("x");
        let mut b = MarkTrace::new();
        b.merge(&a);
        b.mark("y");
        b.merge(&a);
        assert_eq!(b.taken(0, row.from, row.input), 2);
        assert_eq!(b.marks(), [("x", 2), ("y", 1)]);
        assert_eq!(b.rows_missed().len(), all - 1);
        assert_eq!(b.rows_unexpected(), [""; 0]);
        let declared = |row: &&xio_proto::Row| row.unreachable.is_some();
        let Some(never) = MACHINES[0].rows.iter().find(declared) else {
            panic!("no row is declared unreachable")
        };
        b.transition(0, 7, never.from, never.input, never.next);
        // A pair that is no row: nothing is vacant and destroyed.
        let (last, none) = (MACHINES[0].inputs.len() as u8 - 1, 0);
        b.transition(0, 7, none, last, none);
        assert_eq!(b.rows_unexpected().len(), 2);
    }
}
