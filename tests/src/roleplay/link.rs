//! One transport connection of the player: what of ours stands for what was recorded.

use std::collections::{HashMap, VecDeque};

use xio_proto::{NexusId, Segment, SlotId, WrId};

use super::ledger::Ledger;
use crate::golden::{Body, Field, Frame, Kind, Named, Section, named};

/// Something this side put on its send queue that the recording shows too.
#[derive(Debug)]
pub(super) enum Sent {
    /// A frame.
    Frame(Frame),
    /// A WRITE into the peer's memory.
    Write(OneSided, Vec<u8>),
}

/// Where a READ or WRITE reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OneSided {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) len: u64,
}

/// A READ that this side posted.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) wr: WrId,
    pub(super) from: OneSided,
    pub(super) into: Vec<Segment>,
}

/// Memory of this side that a frame named to the peer.
#[derive(Clone, Copy, Debug)]
struct Region {
    recorded: u64,
    ours: u64,
    len: u64,
}

/// A transport connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) nexus: NexusId,
    /// Numbers in the recording of this side's queue pair and of the peer's.
    pub(super) qp: Option<u32>,
    pub(super) peer_qp: Option<u32>,
    /// The endpoint asked for the queue pair, and to connect or accept.
    pub(super) wants_qp: bool,
    pub(super) wants_connection: bool,
    pub(super) receives: VecDeque<(WrId, SlotId)>,
    /// Sent and not looked for in the recording yet, without credit frames.
    pub(super) sent: VecDeque<Sent>,
    /// READs not looked for in the recording yet, and those that were not completed yet.
    pub(super) reads: VecDeque<Read>,
    pub(super) reading: VecDeque<Read>,
    /// What READs of the peer found that did not end yet.
    pub(super) peer_reads: VecDeque<Vec<u8>>,
    pub(super) ledger: Ledger,
    /// The session as the recorded side called it, and as this side does.
    session: Option<(u64, u64)>,
    /// Ids of requests and of responses, recorded to ours.
    requests: HashMap<u64, u64>,
    responses: HashMap<u64, u64>,
    regions: Vec<Region>,
    pub(super) gone: bool,
    /// Connect messages of a client's sockets: of the control or single one, of the data one.
    pub(super) hellos: Vec<Vec<u8>>,
}

/// The value of a field in a list of named ones.
fn value(fields: &[Named<'_>], path: &str) -> Option<u64> {
    fields
        .iter()
        .find(|f| f.path == path)
        .and_then(|f| f.field)
        .map(Field::number)
}

/// Sets a field of a section.
pub(super) fn set(section: &mut Section, name: &str, number: u64) {
    let Body::Fields(fields) = &mut section.body else {
        return;
    };
    for field in fields.iter_mut().filter(|field| field.name == name) {
        let from = 8 - field.value.len();
        field.value.copy_from_slice(&number.to_be_bytes()[from..]);
    }
}

impl Link {
    pub(super) fn new(nexus: NexusId) -> Self {
        Self {
            nexus,
            qp: None,
            peer_qp: None,
            wants_qp: false,
            wants_connection: false,
            receives: VecDeque::new(),
            sent: VecDeque::new(),
            reads: VecDeque::new(),
            reading: VecDeque::new(),
            peer_reads: VecDeque::new(),
            ledger: Ledger::new(),
            session: None,
            requests: HashMap::new(),
            responses: HashMap::new(),
            regions: Vec::new(),
            gone: false,
            hellos: Vec::new(),
        }
    }

    /// Learns from a frame of ours and the recorded one which of our ids and addresses stand for
    /// which recorded ones.
    pub(super) fn learn(&mut self, recorded: &Frame, ours: &Frame) {
        let (theirs, mine) = (named(&recorded.sections), named(&ours.sections));
        let pair = |path: &str| Some((value(&theirs, path)?, value(&mine, path)?));
        let session = ["setup_req", "accept", "redirect", "reject"]
            .into_iter()
            .find_map(|section| pair(&format!("{section}.session_id")));
        if session.is_some() {
            self.session = session;
        }
        for (section, request) in [
            ("rdma_req", true),
            ("tcp_req", true),
            ("rdma_rsp", false),
            ("tcp_rsp", false),
        ] {
            let Some((recorded, ours)) = pair(&format!("{section}.ltid")) else {
                continue;
            };
            let ids = if request {
                &mut self.requests
            } else {
                &mut self.responses
            };
            // One that the recorded side used again stands for a new one of ours.
            ids.insert(recorded, ours);
        }
        for field in &theirs {
            let Some(list) = field.path.strip_suffix(".addr") else {
                continue;
            };
            let length = format!("{list}.length");
            if let (Some((from, to)), Some(len)) = (pair(&field.path), value(&theirs, &length)) {
                self.regions.push(Region {
                    recorded: from,
                    ours: to,
                    len,
                });
            }
        }
    }

    /// Our address that stands for a recorded one, if a frame named it.
    pub(super) fn translate(&self, addr: u64, len: u64) -> Option<u64> {
        let inside = |r: &&Region| r.recorded <= addr && addr + len <= r.recorded + r.len;
        let region = self.regions.iter().rev().find(inside)?;
        Some(region.ours + (addr - region.recorded))
    }

    /// A frame of the recorded peer as that peer would have sent it to this side.
    pub(super) fn addressed(&self, frame: &Frame) -> Result<Frame, String> {
        let mut frame = frame.clone();
        let known = |map: &HashMap<u64, u64>, id: u64| {
            let ours = map.get(&id).copied();
            ours.ok_or_else(|| format!("answers {id:#x}, which was not sent"))
        };
        let kind = frame.kind;
        for section in &mut frame.sections {
            let number = |name: &str| match &section.body {
                Body::Fields(fields) => fields.iter().find(|f| f.name == name).map(Field::number),
                Body::Bytes(_) => None,
            };
            let own = |id: u64| match self.session {
                Some((recorded, ours)) if recorded == id => Ok(ours),
                other => Err(format!("is for session {id:#x}, not {other:?}")),
            };
            match section.name.as_str() {
                // A response is found by its request alone, and a setup names no session yet.
                "ses" if kind.wire() & 2 != 0 && kind != Kind::SessionSetupReq => {
                    let id = own(number("dest_session_id").unwrap_or(0))?;
                    set(section, "dest_session_id", id);
                }
                "rdma_rsp" | "tcp_rsp" => {
                    let id = known(&self.requests, number("rtid").unwrap_or(0))?;
                    set(section, "rtid", id);
                }
                "read_ack" => {
                    let id = known(&self.responses, number("rtid").unwrap_or(0))?;
                    set(section, "rtid", id);
                }
                "session_cancel" => {
                    let id = own(number("responder_session_id").unwrap_or(0))?;
                    set(section, "responder_session_id", id);
                }
                _ => {}
            }
        }
        Ok(frame)
    }
}
