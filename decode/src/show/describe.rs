//! A frame's parts in order, and what is wrong with it.

use xio_proto::wire::{
    Bounds, ConnectMessage, CreditNop, Framing, Kind, NexusSetupRequest, NexusSetupResponse, Op,
    Portals, ReadAck, Request, Response, SessionSetupResponse, Sges, Violation, layout,
};

use super::{Node, Shown, Value, fields};
use crate::report::Trouble;

/// A whole frame.
pub(crate) struct Body<'a> {
    pub(crate) kind: Kind,
    pub(crate) framing: Framing,
    /// All its bytes, zeros where they were not captured.
    pub(crate) bytes: &'a [u8],
    /// How many were not captured, all of them in the application's data.
    pub(crate) missing: u64,
    /// Data outside of the frame that is shown behind it.
    pub(crate) payload: Option<Shown>,
}

/// The tree of a frame, and its defect: one that no parser takes within `widest`, or beyond what
/// its receiver `agreed` to.
pub(crate) fn frame(
    body: &Body<'_>,
    widest: &Bounds,
    agreed: Option<&Bounds>,
) -> (Vec<Node>, Option<Trouble>) {
    let mut tree = front(body.kind, body.framing, body.bytes);
    let mut trouble = match rest(body, widest, &mut tree) {
        Ok(()) => None,
        Err(violation) => Some(Trouble::from(violation)),
    };
    if trouble.is_none()
        && let Some(agreed) = agreed
        && let Err(violation) = check(body, agreed)
    {
        let mut beyond = Trouble::from(violation);
        beyond.text.push_str(", by what the receiver announced");
        trouble = Some(beyond);
    }
    if body.missing > 0 && trouble.is_none() {
        trouble = Some(Trouble {
            text: format!("{} bytes of its data are not in the capture", body.missing),
            offset: body.bytes.len() as u64 - body.missing.min(body.bytes.len() as u64),
            is_gap: true,
        });
    }
    if let Some(payload) = &body.payload {
        let at = body.bytes.len() as u64;
        if payload.missing > 0 && trouble.is_none() {
            trouble = Some(Trouble {
                text: format!(
                    "{} of {} bytes outside the frame are not in the capture",
                    payload.missing, payload.len
                ),
                offset: at + payload.len - payload.missing,
                is_gap: true,
            });
        }
        tree.push(Node::new("payload", at, Value::Bytes(payload.clone())));
    }
    (tree, trouble)
}

/// The tree of as much of a frame's fixed parts as is there.
pub(crate) fn front_only(kind: Kind, framing: Framing, bytes: &[u8]) -> Vec<Node> {
    front(kind, framing, bytes)
}

/// The tree of a connect message.
pub(crate) fn connect_message(bytes: &[u8; ConnectMessage::LEN]) -> Vec<Node> {
    vec![fields::part(&layout::CONNECT, 0, bytes)]
}

fn front(kind: Kind, framing: Framing, bytes: &[u8]) -> Vec<Node> {
    let parts = layout::parts(kind, framing.dialect()).iter();
    let there = parts.map_while(|part| {
        let at = usize::from(part.at);
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        Some(fields::part(part, u64::from(part.at), rest))
    });
    there.collect()
}

fn check(body: &Body<'_>, bounds: &Bounds) -> Result<(), Violation> {
    if body.kind.is_request() {
        Request::parse(body.bytes, body.framing, bounds)?;
    } else if body.kind.is_response() {
        Response::parse(body.bytes, body.framing, bounds)?;
    }
    Ok(())
}

/// Everything behind the fixed parts.
fn rest(body: &Body<'_>, bounds: &Bounds, tree: &mut Vec<Node>) -> Result<(), Violation> {
    let (bytes, framing, dialect) = (body.bytes, body.framing, body.framing.dialect());
    match body.kind {
        Kind::NexusSetupReq => drop(NexusSetupRequest::parse(bytes, dialect)?),
        Kind::NexusSetupRsp => drop(NexusSetupResponse::parse(bytes, dialect)?),
        Kind::CreditNop => drop(CreditNop::parse(bytes)?),
        Kind::ReadAck => drop(ReadAck::parse(bytes)?),
        kind if kind.is_request() => {
            let request = Request::parse(bytes, framing, bounds)?;
            segments("in_sges", 96, request.in_sges(), tree);
            let at = 96 + 16 * u64::from(request.head.in_sges);
            segments("out_sges", at, request.out_sges(), tree);
            let parts = Parts {
                header: request.header(),
                header_at: request.header_at.into(),
                pad_len: request.head.pad_len.into(),
                data: request.data(),
                data_at: request.data_at.into(),
            };
            parts.show(body, tree)?;
        }
        _ => {
            let response = Response::parse(bytes, framing, bounds)?;
            let at = u64::from(response.header_at);
            let lists = u64::from(response.head.sges);
            match response.head.op {
                Op::Write => lengths(at - 4 * lists, &response, tree),
                Op::Read => segments("sges", at - 16 * lists, response.sges(), tree),
                Op::Send => {}
            }
            let parts = Parts {
                header: response.header(),
                header_at: response.header_at.into(),
                pad_len: response.head.pad_len.into(),
                data: response.data(),
                data_at: response.data_at.into(),
            };
            parts.show(body, tree)?;
        }
    }
    Ok(())
}

fn segments(name: &'static str, at: u64, list: Sges<'_>, tree: &mut Vec<Node>) {
    if list.len() == 0 {
        return;
    }
    let entry = |(i, sge): (usize, xio_proto::wire::Sge)| {
        let base = at + 16 * i as u64;
        let fields = vec![
            Node::new("addr", base, Value::Hex(sge.addr, 16)),
            Node::new("len", base + 8, Value::Number(sge.len.into())),
            Node::new("rkey", base + 12, Value::Hex(sge.rkey.into(), 8)),
        ];
        numbered(i, base, Value::Group(fields))
    };
    let entries = list.enumerate().map(entry).collect();
    tree.push(Node::new(name, at, Value::List(entries)));
}

fn lengths(at: u64, response: &Response<'_>, tree: &mut Vec<Node>) {
    let entry = |(i, len): (usize, u32)| numbered(i, at + 4 * i as u64, Value::Number(len.into()));
    let entries = response.write_lens().enumerate().map(entry).collect();
    tree.push(Node::new("lengths", at, Value::List(entries)));
}

fn numbered(i: usize, at: u64, value: Value) -> Node {
    let name = i.to_string().into();
    Node { name, at, value }
}

/// What follows the lists.
struct Parts<'a> {
    header: &'a [u8],
    header_at: u64,
    pad_len: u64,
    data: &'a [u8],
    data_at: u64,
}

impl Parts<'_> {
    fn show(&self, body: &Body<'_>, tree: &mut Vec<Node>) -> Result<(), Violation> {
        let lost = body.missing >= body.bytes.len() as u64 - self.header_at && body.missing > 0;
        if !self.header.is_empty() && !body.kind.is_application() && !lost {
            payload_of(body, self.header, self.header_at, tree)?;
        } else if !self.header.is_empty() {
            let mut shown = Shown::new(self.header);
            if lost {
                shown.missing = shown.len;
            }
            tree.push(Node::new("header", self.header_at, Value::Text(shown)));
        }
        if self.pad_len > 0 {
            let at = self.data_at - self.pad_len;
            tree.push(Node::new("padding", at, Value::Number(self.pad_len)));
        }
        if !self.data.is_empty() {
            let mut shown = Shown::new(self.data);
            shown.missing = body.missing.min(shown.len);
            tree.push(Node::new("data", self.data_at, Value::Bytes(shown)));
        }
        Ok(())
    }
}

/// The payload of a control frame.
fn payload_of(
    body: &Body<'_>,
    payload: &[u8],
    at: u64,
    tree: &mut Vec<Node>,
) -> Result<(), Violation> {
    match body.kind {
        Kind::SessionSetupReq => {
            tree.push(fields::part(&layout::SESSION_REQUEST, at, payload));
            let request = Request::parse(body.bytes, body.framing, &WIDEST)?.session_setup()?;
            text("uri", at + 28, request.uri, tree);
            let private_at = at + 28 + request.uri.len() as u64;
            text("private", private_at, request.private, tree);
        }
        Kind::SessionSetupRsp => {
            setup_answer(payload, at, tree);
            let response = Response::parse(body.bytes, body.framing, &WIDEST)?.session_setup()?;
            setup_lists(&response, at + payload.len() as u64, tree);
        }
        Kind::CancelReq | Kind::CancelRsp => {
            tree.push(fields::part(&layout::CANCEL, at, payload));
            if body.kind == Kind::CancelReq {
                Request::parse(body.bytes, body.framing, &WIDEST)?.cancel()?;
            } else {
                Response::parse(body.bytes, body.framing, &WIDEST)?.cancel()?;
            }
        }
        _ => text("header", at, payload, tree),
    }
    Ok(())
}

/// The widest limits that a frame can be held to.
pub(crate) const WIDEST: Bounds = Bounds {
    frame_max: crate::limits::FRAME_MAX,
    max_in_sges: u16::MAX,
    max_out_sges: u16::MAX,
    header_max: u16::MAX,
};

fn text(name: &'static str, at: u64, bytes: &[u8], tree: &mut Vec<Node>) {
    if !bytes.is_empty() {
        tree.push(Node::new(name, at, Value::Text(Shown::new(bytes))));
    }
}

/// The fixed parts of the answer to a session setup.
fn setup_answer(payload: &[u8], at: u64, tree: &mut Vec<Node>) {
    tree.push(fields::part(&layout::SESSION_RESPONSE, at, payload));
    let part = match payload.get(4..6) {
        Some([0, 1]) => layout::ACCEPT,
        Some([0, 2]) => layout::REDIRECT,
        Some([0, 3]) => layout::REJECT,
        _ => return,
    };
    let start = usize::from(part.at);
    if let Some(rest) = payload.get(start..) {
        tree.push(fields::part(&part, at + u64::from(part.at), rest));
    }
}

/// What has no fixed place in the answer to a session setup that ends at `end`.
fn setup_lists(response: &SessionSetupResponse<'_>, end: u64, tree: &mut Vec<Node>) {
    let (list, private): (Option<&Portals<'_>>, &[u8]) = match response {
        SessionSetupResponse::Accept {
            portals, private, ..
        }
        | SessionSetupResponse::Redirect {
            portals, private, ..
        } => (Some(portals), private),
        SessionSetupResponse::Reject { private, .. } => (None, private),
    };
    let private_at = end - private.len() as u64;
    if let Some(list) = list.filter(|list| !list.is_empty()) {
        let len: u64 = list.iter().map(|uri| 2 + uri.len() as u64).sum();
        let mut at = private_at - len;
        let first = at;
        let entry = |(i, uri): (usize, &[u8])| {
            let node = numbered(i, at + 2, Value::Text(Shown::new(uri)));
            at += 2 + uri.len() as u64;
            node
        };
        let entries = list.iter().enumerate().map(entry).collect();
        tree.push(Node::new("portals", first, Value::List(entries)));
    }
    text("private", private_at, private, tree);
}
