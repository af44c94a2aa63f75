//! What is agreed with peers of this kind beyond libxio's protocol (PROTOCOL.md 2.6), and which of
//! a peer's lives a transport connection belongs to (2.7).

use super::Endpoint;
use crate::entries::{Nexus, Stage};
use crate::error::{Reason, Refusal};
use crate::ids::NONE;
use crate::mutant::mutated;
use crate::output::PrivateData;
use crate::state::nexus::{Input, State};
use crate::storage::Storage;
use crate::trace::Trace;
use crate::wire::{
    EXTENSION_VERSION, Extensions, Framing, Introduction, Kind, NexusSetupResponse, Role,
    confirm_word, is_offer, mix, offer_check, offer_word, wire_identity,
};

/// Where an introduction lies in an opening frame on sockets: what the session header has behind
/// `dest_session`, and what means nothing in frames that open something.
const PLACE: core::ops::Range<usize> = 20..20 + Introduction::LEN;

impl Nexus {
    /// Whether both sides can do this.
    #[inline(always)]
    pub(crate) fn can(&self, extension: Extensions) -> bool {
        self.agreement.on.contains(extension)
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Whether application credits are used on a transport connection.
    pub(crate) fn uses_credits_on(&mut self, n: u32) -> bool {
        let nexus = self.s.tables().nexuses.get(n as usize);
        self.g.config.flow_control && nexus.is_none_or(|nexus| !nexus.agreement.without_credits)
    }

    /// Whether a connection uses them.
    #[inline]
    pub(crate) fn uses_credits(&mut self, c: u32) -> bool {
        self.g.config.flow_control && {
            let n = self.connection(c).nexus;
            self.uses_credits_on(n)
        }
    }

    fn extends(&self) -> bool {
        !self.g.config.extensions.is_empty()
    }

    /// A number that no other transport connection of this life has, nor one of another.
    pub(crate) fn next_nonce(&mut self) -> u32 {
        let config = &self.g.config;
        let life = mix(config.seed ^ mix(config.incarnation ^ mix(config.endpoint.into())));
        self.g.nonces += 1;
        (mix(life ^ self.g.nonces) >> 32) as u32
    }

    /// Who this endpoint is on the wire.
    pub(crate) fn own_identity(&self) -> u64 {
        wire_identity(self.g.config.identity, self.g.config.endpoint)
    }

    fn introduction(&mut self, n: u32, version: u8) -> Introduction {
        let nonce = self.nexus(n).agreement.nonce;
        let config = &self.g.config;
        let features = config.extensions_named();
        Introduction {
            version: version.min(EXTENSION_VERSION),
            features,
            identity: self.own_identity(),
            incarnation: config.incarnation,
            nonce,
        }
    }

    /// Says who this side is, and keeps the check of it. Its bytes are to be sent.
    fn introduce(&mut self, n: u32, role: Role, version: u8, race: u8) -> [u8; Introduction::LEN] {
        let it = self.introduction(n, version).with_race(race);
        let agreement = &mut self.nexus(n).agreement;
        let (bytes, check) = it.seal(role, agreement.check);
        agreement.check = check;
        bytes
    }

    /// Takes what the peer said of itself, if it is an answer to what was said before.
    fn take_introduction(&mut self, n: u32, role: Role, bytes: &[u8]) -> bool {
        let own = self.g.config.extensions_named();
        let agreement = &mut self.nexus(n).agreement;
        let Some((it, check)) = Introduction::open(bytes, role, agreement.check) else {
            return false;
        };
        agreement.check = check;
        agreement.version = it.version.min(EXTENSION_VERSION);
        agreement.identity = it.identity;
        agreement.incarnation = it.incarnation;
        agreement.could = it.features & own;
        agreement.race = it.race();
        true
    }

    fn no_agreement(&mut self, n: u32) {
        let agreement = &mut self.nexus(n).agreement;
        agreement.stage = Stage::Off;
        agreement.could = Extensions::empty();
        agreement.identity = 0;
        agreement.version = 0;
    }

    /// Client on RDMA: what goes out with the connect.
    pub(crate) fn offer_private(&mut self, n: u32) -> PrivateData {
        if !self.extends() || self.nexus(n).framing != Framing::Rdma {
            return PrivateData::EMPTY;
        }
        self.nexus(n).agreement.nonce = self.next_nonce();
        self.nexus(n).agreement.stage = Stage::Offered;
        let bytes = self.introduce(n, Role::Client, EXTENSION_VERSION, 0);
        PrivateData::of(&bytes)
    }

    /// Server on RDMA: what came with the connect request.
    pub(crate) fn offered_private(&mut self, n: u32, private: &[u8]) {
        if self.extends() && self.take_introduction(n, Role::Client, private) {
            self.nexus(n).agreement.nonce = self.next_nonce();
            self.nexus(n).agreement.stage = Stage::Offered;
        }
    }

    /// Server on RDMA: what goes out with the accept.
    pub(crate) fn answer_private(&mut self, n: u32) -> PrivateData {
        let agreement = &self.nexus(n).agreement;
        if agreement.stage != Stage::Offered {
            return PrivateData::EMPTY;
        }
        let version = agreement.version;
        let bytes = self.introduce(n, Role::Server, version, 0);
        self.nexus(n).agreement.stage = Stage::Awaiting;
        PrivateData::of(&bytes)
    }

    /// Client on RDMA: what came with the accept.
    pub(crate) fn answered_private(&mut self, n: u32, private: &[u8]) {
        let row = self.nexus(n);
        if row.server || row.framing != Framing::Rdma || row.agreement.stage != Stage::Offered {
            return;
        }
        if self.take_introduction(n, Role::Server, private) {
            self.nexus(n).agreement.stage = Stage::On;
            self.agreed(n);
        } else {
            self.no_agreement(n);
        }
    }

    /// The pad of the setup frame that is being written.
    pub(crate) fn setup_pad(&mut self, n: u32) -> u32 {
        let extends = self.extends();
        let row = self.nexus(n);
        let stream = row.framing != Framing::Rdma;
        let (server, stage, check) = (row.server, row.agreement.stage, row.agreement.check);
        match (stream, server, stage) {
            (true, false, Stage::Off) if extends => {
                let nonce = self.next_nonce();
                let agreement = &mut self.nexus(n).agreement;
                agreement.nonce = nonce;
                agreement.stage = Stage::Offered;
                offer_word(nonce)
            }
            (true, true, Stage::Awaiting) | (false, false, Stage::On) => confirm_word(check),
            _ => 0,
        }
    }

    /// Server: what the pad of NEXUS_SETUP_REQ says. On sockets an offer is answered with the
    /// number of the transport connection; on RDMA it confirms the answer to one.
    pub(crate) fn setup_asked(&mut self, n: u32, pad: u32) {
        let extends = self.extends();
        let row = self.nexus(n);
        let stage = row.agreement.stage;
        if row.framing != Framing::Rdma {
            if extends && is_offer(pad) {
                let nonce = self.next_nonce();
                let row = self.nexus(n);
                row.agreement.nonce = nonce;
                row.cid = nonce | 1;
                row.agreement.check = offer_check(pad, row.cid);
                row.agreement.stage = Stage::Awaiting;
            }
            return;
        }
        let confirmed = pad == confirm_word(row.agreement.check);
        if stage == Stage::Awaiting && confirmed {
            self.nexus(n).agreement.stage = Stage::On;
            self.agreed(n);
        } else {
            self.no_agreement(n);
        }
    }

    /// Client on sockets: what pad and number of NEXUS_SETUP_RSP say.
    pub(crate) fn setup_answered(&mut self, n: u32, cid: u32, pad: u32) {
        let row = self.nexus(n);
        if row.framing == Framing::Rdma || row.agreement.stage != Stage::Offered {
            return;
        }
        let check = offer_check(offer_word(row.agreement.nonce), cid);
        if pad == confirm_word(check) {
            row.agreement.check = check;
            row.agreement.stage = Stage::IntroductionDue;
        } else {
            self.no_agreement(n);
        }
    }

    /// What a refused peer of this kind is told in the setup's answer, beside the status.
    pub(crate) fn refusal_told(&mut self, n: u32) -> Option<[u32; 3]> {
        let row = self.nexus(n);
        let offered = matches!(row.agreement.stage, Stage::Awaiting | Stage::On);
        let (status, listener) = (row.refuse_status, row.listener);
        let told = row.server && offered && self.g.config.extensions.contains(Extensions::REASON);
        if !told || status == 0 {
            return None;
        }
        let listeners = self.s.tables().listeners;
        let turned_away = listeners.get(listener as usize)?.turns_away;
        let no_room = Refusal::NoResources { need: 1, have: 0 };
        let reasons = [turned_away, Some(no_room)];
        let mut reasons = reasons.into_iter().flatten();
        let refusal = reasons.find(|refusal| refusal.status() == status)?;
        Some(refusal.words())
    }

    /// What a refused setup says, on sockets with its reason if the peer is of this kind.
    pub(crate) fn refusal_heard(&mut self, n: u32, setup: &NexusSetupResponse<'_>) -> Reason {
        let status = Reason::SetupRefused(setup.status);
        let row = self.nexus(n);
        if row.framing == Framing::Rdma || row.agreement.stage != Stage::Offered {
            return status;
        }
        let params = &setup.params;
        let check = offer_check(offer_word(row.agreement.nonce), setup.cid);
        let words = [params.max_in_sges, params.max_out_sges, params.max_header];
        match Refusal::from_words(words) {
            Some(refusal) if params.pad == confirm_word(check) => Reason::TurnedAway(refusal),
            _ => status,
        }
    }

    /// An opening frame goes out: on sockets the first one takes the introduction along.
    /// So does each setup that takes part in a race, whatever was agreed before: it answers the last
    /// of that then, and changes nothing of it.
    pub(crate) fn write_introduction(&mut self, n: u32, kind: Kind, race: u8, frame: &mut [u8]) {
        let stage = self.nexus(n).agreement.stage;
        let (role, next, version) = match (stage, kind) {
            (Stage::IntroductionDue, Kind::SessionSetupReq | Kind::HelloReq) => {
                (Role::Client, Stage::Awaiting, EXTENSION_VERSION)
            }
            (Stage::SealDue, Kind::SessionSetupRsp | Kind::HelloRsp) => {
                let version = self.nexus(n).agreement.version;
                (Role::Server, Stage::On, version)
            }
            (Stage::On, Kind::SessionSetupReq) if race != 0 => {
                let version = self.nexus(n).agreement.version;
                let it = self.introduction(n, version).with_race(race);
                let (bytes, _) = it.seal(Role::Client, self.nexus(n).agreement.check);
                frame[PLACE].copy_from_slice(&bytes);
                return;
            }
            _ => return,
        };
        let bytes = self.introduce(n, role, version, race);
        frame[PLACE].copy_from_slice(&bytes);
        self.nexus(n).agreement.stage = next;
    }

    /// An opening frame came: on sockets the first one decides whether anything is agreed. False:
    /// it is of an earlier life of the peer's, and means nothing.
    pub(crate) fn read_introduction(&mut self, n: u32, kind: Kind, frame: &[u8]) -> bool {
        let row = self.nexus(n);
        let server = row.server;
        let opens = match kind {
            Kind::SessionSetupReq | Kind::HelloReq => server,
            Kind::SessionSetupRsp | Kind::HelloRsp => !server,
            _ => false,
        };
        let stream = row.framing != Framing::Rdma;
        if row.agreement.stage != Stage::Awaiting || !opens || !stream {
            return true;
        }
        let role = if server { Role::Client } else { Role::Server };
        let bytes = frame.get(PLACE).unwrap_or(&[]);
        if self.take_introduction(n, role, bytes) {
            let next = if server { Stage::SealDue } else { Stage::On };
            self.nexus(n).agreement.stage = next;
            self.agreed(n);
        } else {
            self.no_agreement(n);
        }
        self.nexus(n).state != State::Disconnecting
    }

    /// Server: the race that a setup takes part in, of which the peer has said who it is; 0 is none.
    pub(crate) fn race_of(&mut self, n: u32, frame: &[u8]) -> u8 {
        let agreement = &mut self.nexus(n).agreement;
        let confirming = core::mem::take(&mut agreement.race);
        let (check, identity) = (agreement.check, agreement.identity);
        if identity == 0 || !agreement.on.contains(Extensions::CROSS) {
            return 0;
        }
        if confirming != 0 {
            return confirming;
        }
        let bytes = frame.get(PLACE).unwrap_or(&[]);
        match Introduction::open(bytes, Role::Client, check) {
            Some((it, _)) if it.identity == identity => it.race(),
            _ => 0,
        }
    }

    /// Extensions are on: the peer's life is known. A transport connection of an earlier one ends
    /// at once; if this one is of an earlier life than another, it is the one that ends.
    fn agreed(&mut self, n: u32) {
        let own = self.g.config.extensions_named();
        let alone = mutated!(self.g, AgreedAlone);
        let agreement = &mut self.nexus(n).agreement;
        agreement.on = if alone { own } else { agreement.could };
        agreement.without_credits = !agreement.on.contains(Extensions::FLOW);
        let (identity, incarnation) = (agreement.identity, agreement.incarnation);
        self.trace.mark("extensions agreed");
        if identity == 0 || !self.nexus(n).can(Extensions::INCARNATION) {
            return;
        }
        let mut later = incarnation;
        let mut other = self.first_known(identity);
        while other != NONE {
            if self.same_peer(n, other) {
                later = later.max(self.nexus(other).agreement.incarnation);
            }
            other = row_next(self.nexus(other));
        }
        self.learn(n, identity);
        if !mutated!(self.g, RestartMissed) {
            self.end_earlier(identity, n, later);
        }
    }

    /// Ends all transport connections of a peer that belong to an earlier life than `later`.
    fn end_earlier(&mut self, identity: u64, like: u32, later: u64) {
        let mut other = self.first_known(identity);
        while other != NONE {
            let next = row_next(self.nexus(other));
            let earlier = self.nexus(other).agreement.incarnation;
            if earlier < later && (other == like || self.same_peer(like, other)) {
                self.trace.mark("earlier life ended");
                self.g.counters.restarts_seen += 1;
                let reason = Reason::PeerRestarted { later };
                self.nexus_input(other, Input::Fail, Some(reason));
            }
            other = next;
        }
    }

    /// Whether two transport connections lead to lives of one peer.
    fn same_peer(&mut self, a: u32, b: u32) -> bool {
        let key = |row: &Nexus| (row.agreement.identity, row.transport, row.peer.ip());
        key(self.nexus(a)) == key(self.nexus(b))
    }

    fn first_known(&mut self, identity: u64) -> u32 {
        let nexuses = self.s.tables().nexuses;
        nexuses[home(identity, nexuses.len())].agreement.bucket
    }

    fn learn(&mut self, n: u32, identity: u64) {
        let nexuses = self.s.tables().nexuses;
        let home = home(identity, nexuses.len());
        nexuses[n as usize].agreement.next = nexuses[home].agreement.bucket;
        nexuses[home].agreement.bucket = n;
    }

    /// A transport connection is over: its peer is no longer known by it.
    pub(crate) fn forget(&mut self, n: u32) {
        let identity = self.nexus(n).agreement.identity;
        if identity == 0 {
            return;
        }
        let nexuses = self.s.tables().nexuses;
        let home = home(identity, nexuses.len());
        let next = nexuses[n as usize].agreement.next;
        let mut at = nexuses[home].agreement.bucket;
        if at == n {
            nexuses[home].agreement.bucket = next;
            return;
        }
        while at != NONE {
            let follow = row_next(&nexuses[at as usize]);
            if follow == n {
                nexuses[at as usize].agreement.next = next;
                return;
            }
            at = follow;
        }
    }
}

fn row_next(row: &Nexus) -> u32 {
    row.agreement.next
}

pub(super) fn home(identity: u64, len: usize) -> usize {
    (mix(identity) % len as u64) as usize
}
