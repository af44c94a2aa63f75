//! Streams: the bytes of one socket or of a pair, cut into frames as a driver would.

use xio_proto::wire::{
    Bounds, ConnectMessage, Framing, Kind, Request, Response, StreamPlan, TLV_LEN, Violation,
    control_len, stream_plan,
};

use crate::frame;

/// What the sockets of one transport connection bring.
#[derive(Clone)]
pub(crate) struct Streams<'a> {
    framing: Framing,
    has_connect_message: bool,
    /// What the control or single socket has left.
    control: &'a [u8],
    /// What the data socket has left.
    data: &'a [u8],
}

impl<'a> Streams<'a> {
    /// Reads an input of the target; `None` if it is too short to be one.
    pub(crate) fn new(input: &'a [u8]) -> Option<Self> {
        let (options, rest) = input.split_first()?;
        let (framing, control, data) = if options & 1 == 0 {
            (Framing::TcpSingle, rest, &rest[..0])
        } else {
            let (len, rest) = rest.split_first_chunk::<2>()?;
            let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
            let (control, data) = rest.split_at(len);
            (Framing::TcpDual, control, data)
        };
        Some(Self {
            framing,
            has_connect_message: options & 2 != 0,
            control,
            data,
        })
    }

    /// Takes frames until one is refused or the bytes end.
    pub(crate) fn run(mut self, bounds: &Bounds) {
        if self.has_connect_message && self.connect_message().is_none() {
            return;
        }
        while self.frame(bounds).is_some() {}
    }

    fn connect_message(&mut self) -> Option<()> {
        let (bytes, rest) = self.control.split_first_chunk()?;
        let message = ConnectMessage::parse(bytes).ok()?;
        let mut again = [0xa5; ConnectMessage::LEN];
        assert_eq!(message.encode(&mut again), ConnectMessage::LEN);
        assert_eq!(ConnectMessage::parse(&again), Ok(message));
        self.control = rest;
        Some(())
    }

    /// Takes one frame; `None` ends the streams.
    fn frame(&mut self, bounds: &Bounds) -> Option<()> {
        let tlv = self.control.first_chunk::<TLV_LEN>()?;
        let (kind, len) = control_len(tlv, self.framing, bounds.frame_max).ok()?;
        assert!(len > TLV_LEN && len as u64 <= u64::from(bounds.frame_max));
        let (part, rest) = self.control.split_at_checked(len)?;
        self.control = rest;
        let plan = match stream_plan(part, self.framing, kind, bounds) {
            Ok(plan) => plan,
            Err(violation) => {
                self.check_refusal(part, kind, bounds, violation);
                return None;
            }
        };
        self.check_plan(part, plan, bounds);

        let (inline, rest) = self.data.split_at_checked(plan.data_inline as usize)?;
        self.data = rest;
        let whole = [part, inline].concat();
        let checked = frame::check(&whole, self.framing, bounds);
        assert!(
            checked.is_ok() || !kind.is_numbered(),
            "planned, then refused: {checked:?}"
        );
        checked.ok()?;
        self.skip(plan.payload)
    }

    /// A plan is refused for what the parser would refuse the frame for; on one socket the frame
    /// is whole, so that this can be seen.
    fn check_refusal(&self, part: &[u8], kind: Kind, bounds: &Bounds, violation: Violation) {
        if self.framing == Framing::TcpSingle {
            let refused = if kind.is_request() {
                Request::parse(part, self.framing, bounds).err()
            } else {
                Response::parse(part, self.framing, bounds).err()
            };
            assert_eq!(refused, Some(violation));
        }
    }

    /// Nobody is made to wait for, or to store, more than the bounds allow.
    fn check_plan(&self, part: &[u8], plan: StreamPlan, bounds: &Bounds) {
        assert!(plan.data_inline == 0 || plan.payload == 0);
        assert!(plan.data_inline == 0 || self.framing == Framing::TcpDual);
        let whole = part.len() as u64 + u64::from(plan.data_inline);
        assert!(whole <= u64::from(bounds.frame_max));
        assert!(plan.payload < 1 << 48);
    }

    /// Leaves out the payload behind a frame, if it is all there.
    fn skip(&mut self, payload: u64) -> Option<()> {
        let socket = match self.framing {
            Framing::TcpDual => &mut self.data,
            Framing::TcpSingle | Framing::Rdma => &mut self.control,
        };
        *socket = socket.get(usize::try_from(payload).ok()?..)?;
        Some(())
    }
}
