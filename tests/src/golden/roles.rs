//! A recording as seen by one of its sides.

use super::model::{Event, Record, Side, Transcript};

/// What a record is to a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It came to the side: to be fed in.
    Input,
    /// The side did it: to be compared with.
    Output,
}

/// What a record is to a side; `None` if the side cannot see it.
///
/// An RDMA WRITE is an input of the peer, although nothing reports it: its memory has changed
/// before the next frame arrives. Frames carry the time at which they were posted.
#[must_use]
pub fn turn(event: &Event, side: Side) -> Option<Turn> {
    let (actor, seen_by_peer) = match event {
        Event::Cm { side: at, .. } | Event::ReadDone { side: at, .. } => {
            return (*at == side).then_some(Turn::Input);
        }
        Event::Connect(_) => (Side::Client, false),
        Event::Accept(_) => (Side::Server, false),
        Event::CreateQp { side, .. }
        | Event::Disconnect { side, .. }
        | Event::Beacon { side, .. }
        | Event::ReadPosted { side, .. } => (*side, false),
        Event::Frame(frame) => (frame.side, true),
        Event::Write { side, .. } | Event::Fin { side, .. } | Event::Rst { side, .. } => {
            (*side, true)
        }
        Event::Syn { .. } | Event::Hello { .. } => (Side::Client, true),
    };
    if actor == side {
        Some(Turn::Output)
    } else {
        seen_by_peer.then_some(Turn::Input)
    }
}

impl Transcript {
    /// The records that concern a side, in time order.
    pub fn script(&self, side: Side) -> impl Iterator<Item = (Turn, &Record)> {
        self.records
            .iter()
            .filter_map(move |r| turn(&r.event, side).map(|turn| (turn, r)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{Kind, load};

    /// The script of a side in few words.
    fn words(name: &str, side: Side) -> Vec<String> {
        let transcript = load(name).unwrap();
        let word = |(turn, record): (Turn, &Record)| {
            let what = match &record.event {
                Event::Frame(frame) => frame.kind.name().to_owned(),
                other => {
                    let text = format!("{other:?}");
                    text.split([' ', '(']).next().unwrap_or_default().to_owned()
                }
            };
            format!("{}{what}", if turn == Turn::Input { "<" } else { ">" })
        };
        transcript.script(side).map(word).collect()
    }

    #[test]
    fn each_side_of_a_write_and_a_read() {
        let server = words("rdma-1m", Side::Server);
        let want = ["<MSG_REQ", ">ReadPosted", "<ReadDone", ">Write", ">MSG_RSP"];
        assert!(server.windows(5).any(|part| part == want), "{server:?}");
        let client = words("rdma-1m", Side::Client);
        assert!(
            client
                .windows(3)
                .any(|p| p == [">MSG_REQ", "<Write", "<MSG_RSP"]),
            "{client:?}"
        );
        assert_eq!(client[..4], ["<Cm", "<Cm", ">CreateQp", ">Connect"]);
    }

    #[test]
    fn a_refused_cancel_on_sockets() {
        let client = words("tcp-cancel", Side::Client);
        assert_eq!(client[..4], [">Syn", ">Syn", ">Hello", ">Hello"]);
        assert_eq!(
            client[client.len() - 4..],
            [">CANCEL_REQ", "<Fin", "<Rst", ">Fin"]
        );
    }

    #[test]
    fn a_frame_is_output_of_one_side_and_input_of_the_other() {
        for name in crate::golden::NAMES {
            let transcript = load(name).unwrap();
            let frames = |side, turn| {
                let script = transcript.script(side).filter(|step| step.0 == turn);
                let frames = script.filter_map(|(_, record)| match &record.event {
                    Event::Frame(frame) => Some((record.number, frame.kind)),
                    _ => None,
                });
                frames.collect::<Vec<(u32, Kind)>>()
            };
            for side in [Side::Client, Side::Server] {
                let sent = frames(side, Turn::Output);
                assert!(!sent.is_empty());
                assert_eq!(sent, frames(side.peer(), Turn::Input), "{name}");
            }
        }
    }
}
