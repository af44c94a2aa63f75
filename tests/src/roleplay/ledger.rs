//! Transport credits of one connection, counted from the frames alone.
//!
//! When credits are granted is each side's own affair, so they are not compared with the
//! recording. What must hold: never more is granted than was posted, the recorded peer could have
//! sent every frame that it sent, and no frame goes out for which the recorded peer had granted
//! nothing.

use crate::golden::{Frame, Kind};

/// Sums over the life of a connection. Both sides start with one receive that needs no grant.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    /// Receives that this side posted.
    pub(super) posted: u64,
    granted: u64,
    taken: u64,
    peer_granted: u64,
    peer_taken: u64,
    next_sn: u16,
    /// Credit frames of this side.
    pub(super) nops: usize,
}

/// What a credit frame, setup frame or header of a message grants.
fn credits(frame: &Frame) -> u64 {
    ["rdma_req", "rdma_rsp", "nop"]
        .into_iter()
        .chain((frame.kind == Kind::NexusSetupRsp).then_some("rdma_setup"))
        .find_map(|section| frame.number(section, "credits"))
        .unwrap_or(0)
}

/// The number of a frame that has one of its own.
fn number(frame: &Frame) -> Option<u64> {
    ["rdma_req", "rdma_rsp"]
        .into_iter()
        .find_map(|section| frame.number(section, "sn"))
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self {
            posted: 0,
            granted: 1,
            taken: 0,
            peer_granted: 1,
            peer_taken: 0,
            next_sn: 0,
            nops: 0,
        }
    }

    /// A frame of this side goes out.
    pub(super) fn sent(&mut self, frame: &Frame) -> Result<(), String> {
        let kind = frame.kind.name();
        self.granted += credits(frame);
        if self.granted > self.posted {
            return Err(format!(
                "{kind} grants {}, {} are posted",
                self.granted, self.posted
            ));
        }
        self.peer_taken += 1;
        if self.peer_taken > self.peer_granted {
            return Err(format!(
                "{kind} goes out, the peer granted {}",
                self.peer_granted
            ));
        }
        if let Some(sn) = number(frame) {
            if sn != u64::from(self.next_sn) {
                return Err(format!("{kind} has number {sn}, not {}", self.next_sn));
            }
            self.next_sn = self.next_sn.wrapping_add(1);
        }
        if frame.kind == Kind::CreditNop {
            self.nops += 1;
            let sn = frame.number("nop", "sn");
            if sn != Some(self.next_sn.into()) || credits(frame) == 0 {
                return Err(format!("{kind} with {sn:?} and {} credits", credits(frame)));
            }
        }
        Ok(())
    }

    /// A frame of the recorded peer comes in.
    pub(super) fn received(&mut self, frame: &Frame) -> Result<(), String> {
        let kind = frame.kind.name();
        let setup = matches!(frame.kind, Kind::NexusSetupReq | Kind::NexusSetupRsp);
        // A peer keeps its last credit for a credit frame, and acknowledges a READ without one.
        let need = if number(frame).is_some() { 2 } else { 1 };
        let have = self.granted - self.taken;
        if have < need && (setup || frame.kind != Kind::ReadAck) {
            return Err(format!(
                "the peer is starved: {have} credits left for {kind}"
            ));
        }
        self.taken += 1;
        self.peer_granted += credits(frame);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{Body, load};

    /// The first recorded frame of a kind with other credits.
    fn frame(kind: Kind, credits: u16) -> Frame {
        let transcript = load("rdma-credit-nop").unwrap();
        let mut frame = transcript
            .frames()
            .find(|f| f.1.kind == kind)
            .unwrap()
            .1
            .clone();
        for section in &mut frame.sections {
            if let Body::Fields(fields) = &mut section.body {
                for field in fields.iter_mut().filter(|field| field.name == "credits") {
                    field.value = credits.to_be_bytes().to_vec();
                }
            }
        }
        frame
    }

    #[test]
    fn more_than_was_posted_is_not_granted() {
        let mut ledger = Ledger {
            posted: 8,
            ..Ledger::new()
        };
        ledger.received(&frame(Kind::NexusSetupRsp, 9)).unwrap();
        ledger.sent(&frame(Kind::SessionSetupReq, 7)).unwrap();
        assert!(ledger.clone().sent(&frame(Kind::FinReq, 1)).is_err());
        ledger.posted += 1;
        let nop = frame(Kind::CreditNop, 1);
        ledger.sent(&nop).unwrap();
        ledger.posted += 1;
        assert_eq!(ledger.nops, 1);
        // The next one would have to grant something.
        assert!(ledger.sent(&frame(Kind::CreditNop, 0)).is_err());
    }

    #[test]
    fn a_peer_without_credits_is_starved() {
        let mut ledger = Ledger {
            posted: 3,
            ..Ledger::new()
        };
        ledger.received(&frame(Kind::NexusSetupRsp, 9)).unwrap();
        assert!(
            ledger
                .clone()
                .received(&frame(Kind::SessionSetupRsp, 0))
                .is_err()
        );
        ledger.sent(&frame(Kind::SessionSetupReq, 2)).unwrap();
        ledger.received(&frame(Kind::SessionSetupRsp, 0)).unwrap();
        // The last credit is for a credit frame.
        assert!(ledger.clone().received(&frame(Kind::MsgRsp, 0)).is_err());
        ledger.received(&frame(Kind::CreditNop, 1)).unwrap();
        assert!(ledger.received(&frame(Kind::CreditNop, 1)).is_err());
    }

    #[test]
    fn nothing_is_sent_that_the_peer_has_no_receive_for() {
        let mut ledger = Ledger {
            posted: 9,
            ..Ledger::new()
        };
        ledger.sent(&frame(Kind::NexusSetupReq, 0)).unwrap();
        assert!(ledger.sent(&frame(Kind::SessionSetupReq, 1)).is_err());
    }
}
