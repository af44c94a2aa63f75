//! One direction of a transport connection: bytes and holes to frames.

use xio_proto::wire::{
    Bounds, Cut, Follower, Framing, Kind, Next, NexusSetupRequest, NexusSetupResponse, TLV_LEN,
    Violation, What as Check, control_len, find_frame,
};

use super::guess::{Guess, guess};
use super::link::Common;
use crate::limits::{FRAME_MAX, PREVIEW, QUEUE_MAX};
use crate::queue::{Front, Queue};
use crate::report::{Frame, Lost, Reporter, Stamp, Trouble, What};
use crate::show::{self, Body, Shown, WIDEST};

/// What a direction works on.
pub(super) struct Io<'a, 'b> {
    pub(super) common: &'a mut Common,
    pub(super) d: usize,
    pub(super) main: &'a mut Queue,
    /// The data socket, if there is one and it was seen.
    pub(super) data: Option<&'a mut Queue>,
    /// Nothing more will come.
    pub(super) is_last: bool,
    pub(super) out: &'a mut Reporter<'b>,
}

impl Io<'_, '_> {
    fn tell(&mut self, stamp: Stamp, at: u64, what: What) {
        let (stream, dir) = (self.common.stream, self.common.dir(self.d));
        self.out.tell(stamp, stream, dir, at, what);
    }
}

/// A frame whose data has not all come.
#[derive(Debug)]
struct Pending {
    kind: Kind,
    framing: Framing,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were not captured.
    missing: u64,
    at: u64,
    stamp: Stamp,
    payload: Option<Shown>,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Direction {
    follower: Option<Follower>,
    pending: Option<Pending>,
    /// Where the next frame starts has to be searched for, and why.
    search: Option<&'static str>,
    /// Bytes that were searched in vain, and where they began.
    skipped: u64,
    skipped_from: u64,
    /// Which bytes of the data socket belong to which frame is not known any more.
    data_lost: bool,
    data_skipped: u64,
}

impl Direction {
    /// Begins, after so many bytes that were no frame.
    pub(super) fn begin(&mut self, skipped: u64, has_greeting: bool) {
        if !has_greeting {
            self.skipped = skipped;
            self.search = Some("the capture begins in the middle");
        }
    }

    /// Cuts as far as bytes go.
    pub(super) fn run(&mut self, io: &mut Io<'_, '_>) {
        while self.step(io) {}
        if self.data_lost
            && let Some(data) = io.data.as_deref_mut()
        {
            while !matches!(data.front(), Front::Empty) {
                self.data_skipped += data.take(u64::MAX);
            }
        }
        let dropped = std::mem::take(&mut io.main.dropped);
        let dropped_data = io
            .data
            .as_deref_mut()
            .map_or(0, |q| std::mem::take(&mut q.dropped));
        let count = dropped + dropped_data;
        io.out
            .summary
            .add("bytes dropped because too many waited", count);
    }

    /// Tells what is left.
    pub(super) fn finish(&mut self, io: &mut Io<'_, '_>) {
        self.tell_skipped(io);
        if let Some(data) = io.data.as_deref_mut() {
            while !matches!(data.front(), Front::Empty) {
                self.data_skipped += data.take(u64::MAX);
            }
        }
        if self.data_skipped > 0 {
            let lost = Lost {
                bytes: std::mem::take(&mut self.data_skipped),
                why: "data socket: no frame in the capture says what these bytes are".to_owned(),
            };
            let at = io.data.as_deref().map_or(0, Queue::at);
            let stamp = io.main.stamp();
            io.tell(stamp, at.saturating_sub(lost.bytes), What::Lost(lost));
        }
    }

    /// Takes one step; false when bytes are missing for it.
    fn step(&mut self, io: &mut Io<'_, '_>) -> bool {
        match self
            .follower
            .map_or(Next::Frame, |follower| follower.next())
        {
            Next::Frame if self.pending.is_some() => {
                self.complete(io);
                true
            }
            Next::Frame => self.frame(io),
            Next::Inline(left) => self.fetch(left.into(), io),
            Next::Payload(left) => self.fetch(left, io),
        }
    }

    /// Cuts a frame off the front, or drops what is none.
    fn frame(&mut self, io: &mut Io<'_, '_>) -> bool {
        let (bytes, last) = match io.main.front() {
            Front::Empty => return false,
            Front::Hole(len) => {
                self.lose(io, len, "bytes are missing in the capture");
                return true;
            }
            Front::Data(bytes, last) => (bytes, last || io.is_last),
        };
        if self.search.is_some() {
            match find_frame(bytes, FRAME_MAX) {
                Ok(0) => {
                    self.tell_skipped(io);
                    self.search = None;
                    return true;
                }
                Ok(at) => self.skip(io, at as u64),
                Err(_) if last => self.skip(io, bytes.len() as u64),
                Err(0) => return false,
                Err(skip) => self.skip(io, skip as u64),
            }
            return true;
        }
        match self.cut(bytes, last, io.common) {
            Ok(Cut::More(_)) if !last => false,
            Ok(Cut::More(need)) => {
                self.cut_short(io, need);
                true
            }
            Ok(Cut::Frame { kind, len, plan }) => {
                let at = io.main.at();
                let bytes = bytes[..len].to_vec();
                io.main.take(len as u64);
                // Undecided frames are the same in both.
                let framing = io.common.framing.unwrap_or(Framing::TcpSingle);
                self.pending = Some(Pending {
                    kind,
                    framing,
                    bytes,
                    missing: 0,
                    at,
                    stamp: io.main.stamp(),
                    payload: (plan.payload > 0).then(|| Shown {
                        len: plan.payload,
                        first: Vec::new(),
                        missing: 0,
                    }),
                });
                true
            }
            Err(violation) => {
                self.malformed(io, violation);
                true
            }
        }
    }

    fn cut(&mut self, bytes: &[u8], last: bool, common: &mut Common) -> Result<Cut, Violation> {
        let framing = match common.framing {
            Some(framing) => framing,
            None => match guess(bytes, last)? {
                Guess::More(need) => return Ok(Cut::More(need)),
                Guess::Either(cut) => return Ok(cut),
                Guess::Is(framing) => {
                    common.framing = Some(framing);
                    common.is_guessed = true;
                    tracing::debug!(stream = common.stream, ?framing, "concluded from a frame");
                    framing
                }
            },
        };
        if framing == Framing::TcpDual && common.is_guessed {
            self.data_lost = true;
        }
        let follower = self
            .follower
            .get_or_insert_with(|| Follower::new(framing, WIDEST));
        follower.cut(bytes)
    }

    /// Takes bytes that belong to the last frame, inside of it or behind.
    fn fetch(&mut self, left: u64, io: &mut Io<'_, '_>) -> bool {
        let (Some(pending), Some(follower)) = (&mut self.pending, &mut self.follower) else {
            return false;
        };
        let is_dual = pending.framing == Framing::TcpDual;
        let crowded = is_dual && io.main.len() > QUEUE_MAX / 2;
        let source = if is_dual {
            io.data.as_deref_mut()
        } else {
            Some(&mut *io.main)
        };
        let source = source.filter(|_| !(is_dual && self.data_lost));
        let Some(source) = source else {
            if self.data_lost || io.is_last || crowded {
                self.give_up(left);
                return true;
            }
            return false;
        };
        let (took, is_hole) = match source.front() {
            Front::Empty if source.is_ended() || io.is_last || crowded => {
                self.give_up(left);
                return true;
            }
            Front::Empty => return false,
            Front::Hole(len) => (len.min(left), true),
            Front::Data(bytes, _) => {
                let len = left.min(bytes.len() as u64);
                let bytes = &bytes[..len as usize];
                match &mut pending.payload {
                    Some(shown) => {
                        let room = PREVIEW - shown.first.len();
                        if shown.missing == 0 {
                            shown
                                .first
                                .extend_from_slice(&bytes[..bytes.len().min(room)]);
                        }
                    }
                    None => pending.bytes.extend_from_slice(bytes),
                }
                (len, false)
            }
        };
        source.take(took);
        follower.took(took);
        if is_hole {
            pending.lack(took);
        }
        pending.stamp = pending.stamp.max(source.stamp());
        true
    }

    /// What is missing of the last frame will not come.
    fn give_up(&mut self, left: u64) {
        if let Some(pending) = &mut self.pending {
            pending.lack(left);
        }
        if let Some(follower) = &mut self.follower {
            follower.give_up();
        }
        self.data_lost = true;
    }

    /// Tells of a frame of which all is there that will ever be.
    fn complete(&mut self, io: &mut Io<'_, '_>) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        learn(io, &pending);
        let agreed = agreed(io.common, io.d);
        let body = Body {
            kind: pending.kind,
            framing: pending.framing,
            bytes: &pending.bytes,
            missing: pending.missing,
            payload: pending.payload,
        };
        let (tree, trouble) = show::frame(&body, &WIDEST, agreed.as_ref());
        let frame = Frame {
            kind: pending.kind.name(),
            len: pending.bytes.len() as u64,
            trouble,
            tree,
        };
        io.tell(pending.stamp, pending.at, What::Frame(frame));
    }

    /// Tells of a frame with a defect, and goes behind it.
    fn malformed(&mut self, io: &mut Io<'_, '_>, violation: Violation) {
        let Front::Data(bytes, _) = io.main.front() else {
            return;
        };
        let framing = io.common.framing.unwrap_or(Framing::TcpSingle);
        self.search = Some("no frame starts here");
        self.skipped_from = io.main.at();
        self.data_lost |= framing == Framing::TcpDual;
        if violation.what == Check::Magic {
            return;
        }
        let tlv = bytes.first_chunk::<TLV_LEN>();
        let whole = tlv.and_then(|tlv| control_len(tlv, framing, FRAME_MAX).ok());
        // Past it, unless what follows shows that its length is wrong too.
        let len = whole.map_or(TLV_LEN, |(_, len)| {
            let behind = bytes.get(len..).unwrap_or_default();
            let start = behind.len().min(4);
            let fits = len <= bytes.len() && behind[..start] == b"XIOP"[..start];
            if fits { len } else { TLV_LEN }
        });
        let word = bytes.get(4..).and_then(|rest| rest.first_chunk::<4>());
        let kind = word.and_then(|word| {
            let word = u32::from_be_bytes(*word);
            Kind::from_word(word, framing.dialect()).ok()
        });
        let len = len.min(bytes.len());
        let frame = Frame {
            kind: kind.map_or("MALFORMED", Kind::name),
            len: len as u64,
            trouble: Some(Trouble::from(violation)),
            tree: match kind {
                Some(kind) => show::front_only(kind, framing, bytes),
                None => show::front_only(Kind::MsgReq, framing, &bytes[..TLV_LEN.min(bytes.len())]),
            },
        };
        let at = io.main.at();
        io.main.take(len as u64);
        self.skipped_from = io.main.at();
        self.search = Some("no frame starts behind the malformed one");
        let stamp = io.main.stamp();
        io.tell(stamp, at, What::Frame(frame));
    }

    /// Tells of a frame of which the capture has only the front.
    fn cut_short(&mut self, io: &mut Io<'_, '_>, need: usize) {
        let Front::Data(bytes, _) = io.main.front() else {
            return;
        };
        let framing = io.common.framing.unwrap_or(Framing::TcpSingle);
        let tlv = bytes.first_chunk::<TLV_LEN>();
        let known = tlv.and_then(|tlv| control_len(tlv, framing, FRAME_MAX).ok());
        let have = bytes.len() as u64;
        let frame = Frame {
            kind: known.map_or("TRUNCATED", |(kind, _)| kind.name()),
            len: have,
            trouble: Some(Trouble {
                text: format!("only {have} of at least {need} bytes are in the capture"),
                offset: have,
                is_gap: true,
            }),
            tree: known.map_or_else(Vec::new, |(kind, _)| show::front_only(kind, framing, bytes)),
        };
        let at = io.main.at();
        io.main.take(have);
        self.data_lost |= framing == Framing::TcpDual;
        self.skipped_from = io.main.at();
        self.search = Some("behind a frame that was cut");
        let stamp = io.main.stamp();
        io.tell(stamp, at, What::Frame(frame));
    }

    fn lose(&mut self, io: &mut Io<'_, '_>, len: u64, why: &'static str) {
        if self.skipped == 0 {
            self.skipped_from = io.main.at();
        }
        self.search.get_or_insert(why);
        // Which bytes of the data socket the lost frames had cannot be known.
        self.data_lost |= io.common.framing == Some(Framing::TcpDual);
        self.skip(io, len);
    }

    fn skip(&mut self, io: &mut Io<'_, '_>, len: u64) {
        self.skipped += io.main.take(len);
    }

    fn tell_skipped(&mut self, io: &mut Io<'_, '_>) {
        let bytes = std::mem::take(&mut self.skipped);
        if bytes == 0 {
            return;
        }
        let why = self.search.unwrap_or("no frame starts here").to_owned();
        let at = self.skipped_from;
        let stamp = io.main.stamp();
        io.tell(stamp, at, What::Lost(Lost { bytes, why }));
    }
}

impl Pending {
    /// So many bytes of it are not in the capture.
    fn lack(&mut self, len: u64) {
        match &mut self.payload {
            Some(shown) => shown.missing += len,
            None => {
                self.missing += len;
                // Within the limit of a frame, as the plan was.
                self.bytes.resize(self.bytes.len() + len as usize, 0);
            }
        }
    }
}

/// Remembers what a side announces.
fn learn(io: &mut Io<'_, '_>, pending: &Pending) {
    let dialect = pending.framing.dialect();
    let announced = match pending.kind {
        Kind::NexusSetupReq => {
            io.common.sides_are_known();
            NexusSetupRequest::parse(&pending.bytes, dialect).map(|setup| setup.params)
        }
        Kind::NexusSetupRsp => {
            NexusSetupResponse::parse(&pending.bytes, dialect).map(|setup| setup.params)
        }
        _ => return,
    };
    io.common.announced[io.d] = announced.ok();
}

/// What the receiver of direction `d` takes, once both sides have said so.
fn agreed(common: &Common, d: usize) -> Option<Bounds> {
    let (client, server) = (common.announced[0]?, common.announced[1]?);
    let receiver = if d == 0 { server } else { client };
    // A refused setup has nothing in it.
    if server.buffer_size == 0 {
        return None;
    }
    let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    Some(Bounds {
        frame_max: u32::try_from(server.buffer_size).unwrap_or(FRAME_MAX),
        max_in_sges: short(receiver.max_out_sges),
        max_out_sges: short(receiver.max_in_sges),
        header_max: short(receiver.max_header),
    })
}
