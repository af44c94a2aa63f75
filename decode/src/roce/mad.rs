//! Which two directions are one queue pair: by the communication manager's datagrams where they
//! were captured, otherwise by the setup frames, otherwise by addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use xio_proto::wire::Kind;

use super::FlowKey;
use crate::limits::STREAMS_MAX;
use crate::report::{Dir, Reporter};

/// Bytes of the header of a management datagram.
const HEADER: usize = 24;
/// The class of the communication manager.
const CM_CLASS: u8 = 7;

/// A transport connection.
#[derive(Copy, Clone, Debug)]
struct Pair {
    /// Its number, once a frame came.
    stream: Option<u32>,
    /// Who sends on the first direction that had a frame.
    first: Dir,
}

/// All transport connections, by what is known of them.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pairs: Vec<Pair>,
    /// Directions whose transport connection is known.
    known: BTreeMap<FlowKey, (usize, Dir)>,
    /// Requests for a connection: client, server, the client's id; its queue pair.
    requests: BTreeMap<(IpAddr, IpAddr, u32), u32>,
    /// Transport connections of which one direction had a frame: from, to.
    halves: BTreeMap<(IpAddr, IpAddr), Vec<usize>>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Exchange {
    /// Takes a management datagram; the name under which it is counted, if it is the
    /// communication manager's.
    pub(super) fn mad(&mut self, from: IpAddr, to: IpAddr, bytes: &[u8]) -> Option<&'static str> {
        if *bytes.get(1)? != CM_CLASS {
            return None;
        }
        let attribute = word(bytes, 16)? >> 16;
        let body = bytes.get(HEADER..)?;
        match attribute {
            0x10 => {
                if self.requests.len() < STREAMS_MAX {
                    let key = (from, to, word(body, 0)?);
                    self.requests.insert(key, word(body, 32)? >> 8);
                }
                Some("CM REQ datagrams")
            }
            0x11 => Some("CM MRA datagrams"),
            0x12 => Some("CM REJ datagrams"),
            0x13 => {
                let client = self.requests.remove(&(to, from, word(body, 4)?));
                // Others are paired by their frames.
                if let Some(client) = client
                    && self.known.len() < 2 * STREAMS_MAX
                {
                    let pair = self.pair(Dir::Unknown);
                    let server = word(body, 12)? >> 8;
                    self.known.insert((to, from, server), (pair, Dir::ToServer));
                    self.known.insert((from, to, client), (pair, Dir::ToClient));
                }
                Some("CM REP datagrams")
            }
            0x14 => Some("CM RTU datagrams"),
            0x15 => Some("CM DREQ datagrams"),
            0x16 => Some("CM DREP datagrams"),
            _ => Some("CM datagrams of other kinds"),
        }
    }

    fn pair(&mut self, first: Dir) -> usize {
        let stream = None;
        self.pairs.push(Pair { stream, first });
        self.pairs.len() - 1
    }

    /// The stream of a direction that has its first thing to tell, and who sends on it; `kind` is
    /// the type word of its frame.
    pub(super) fn stream(
        &mut self,
        (from, to, queue_pair): FlowKey,
        kind: Option<&[u8]>,
        out: &mut Reporter<'_>,
    ) -> (u32, Dir) {
        let known = self.known.get(&(from, to, queue_pair)).copied();
        let (pair, dir) = known.unwrap_or_else(|| {
            let is = |wanted: Kind| kind == Some(&wanted.word().to_be_bytes()[..]);
            let own = if is(Kind::NexusSetupReq) {
                Dir::ToServer
            } else if is(Kind::NexusSetupRsp) {
                Dir::ToClient
            } else {
                Dir::Unknown
            };
            self.conclude(from, to, own)
        });
        let pair = &mut self.pairs[pair];
        (*pair.stream.get_or_insert_with(|| out.stream()), dir)
    }

    /// Joins a direction of which nothing is known with the oldest one the other way round.
    fn conclude(&mut self, from: IpAddr, to: IpAddr, own: Dir) -> (usize, Dir) {
        let waiting = self.halves.get_mut(&(to, from));
        let fits = |dir: Dir| own == Dir::Unknown || dir == Dir::Unknown || dir != own;
        if own != Dir::ToServer
            && let Some(waiting) = waiting
            && let Some(place) = waiting
                .iter()
                .position(|pair| fits(self.pairs[*pair].first))
        {
            let pair = waiting.remove(place);
            let dir = match (own, self.pairs[pair].first) {
                (Dir::Unknown, Dir::ToServer) => Dir::ToClient,
                (Dir::Unknown, Dir::ToClient) => Dir::ToServer,
                _ => own,
            };
            return (pair, dir);
        }
        let pair = self.pair(own);
        self.halves.entry((from, to)).or_default().push(pair);
        (pair, own)
    }
}
