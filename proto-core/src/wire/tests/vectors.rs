//! Example frames and payloads: the undefined fields are zero, everything else is as libxio has
//! it on the wire.

use super::std::format;
use super::std::vec::Vec;

use super::{Framing, hex};

/// A whole, assembled frame.
pub(super) struct Vector {
    pub(super) name: &'static str,
    pub(super) framing: Framing,
    pub(super) bytes: Vec<u8>,
}

/// Session header of a request: session 42, serial 3, sn 3, nothing received.
const S_REQ: &str = "0000002a 00000000 00000000 00000003 0003ffff 00000000 00000000 00000000 \
    00000000 00000000";
/// Session header of a response: session 7, serial 3, sn 3, 1 message and 9 bytes returned.
const S_RSP: &str = "00000007 00001000 00000000 00000003 0003ffff 00010000 00000000 00000000 \
    00000000 00000009";
/// Session header of the first request to session 42.
const S_FIRST: &str = "0000002a 00000000 00000000 00000000 0000ffff 00000000 00000000 00000000 \
    00000000 00000000";
/// Session header of the first response to session 7.
const S_FIRST_RSP: &str = "00000007 00001000 00000000 00000000 0000ffff 00000000 00000000 \
    00000000 00000000 00000000";
/// Session header of a control frame to session 42.
const TO_42: &str = "0000002a 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000";
/// Session header of a control frame to session 7.
const TO_7: &str = "00000007 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000";
/// Session header without anything.
const BLANK: &str = "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000";
/// Session header that returns 5 messages and 40960 bytes.
const CREDITS: &str = "0000002a 00000000 00000000 00000000 000cffff 00050000 00000000 00000000 \
    00000000 0000a000";
const HDR: &str = "48445231";
const HELLO: &str = "68656c6c 6f";
const RSP: &str = "525350";
const WORLD: &str = "776f726c 64";

/// Name, framing, kind, the announced length if not that of the parts, and the parts.
type Row = (
    &'static str,
    Framing,
    u32,
    Option<usize>,
    &'static [&'static str],
);

use Framing::{Rdma, TcpDual, TcpSingle};

const NEXUS: &[Row] = &[
    (
        "rdma nexus_setup_req",
        Rdma,
        0x82,
        None,
        &["01000000 00000000", RDMA_CLIENT],
    ),
    (
        "rdma nexus_setup_rsp",
        Rdma,
        0x84,
        None,
        &["00000001 00000000 01000000", RDMA_SERVER],
    ),
    (
        "rdma nexus_setup_req with keys",
        Rdma,
        0x82,
        None,
        &[
            "01000001 00000009",
            "00000005 01000001 00000000 00002400 00000004 00000004 00000100 00000000",
            "00001111 00002222",
        ],
    ),
    (
        "rdma nexus_setup_rsp refused",
        Rdma,
        0x84,
        None,
        &["00000009 4a5e3a6d 01000001", NO_BLOCK],
    ),
    (
        "tcp nexus_setup_req",
        TcpDual,
        0x82,
        None,
        &["01000000 00000000", TCP_BLOCK],
    ),
    (
        "tcp nexus_setup_rsp",
        TcpSingle,
        0x84,
        None,
        &["00000001 00000000 01000000", TCP_BLOCK],
    ),
    ("read_ack", Rdma, 0x2004, None, &["00060000 000f"]),
    (
        "credit_nop",
        Rdma,
        0x41,
        None,
        &["000c0005 0009001f 00000000"],
    ),
];
const RDMA_CLIENT: &str = "00000005 01000000 00000000 00002400 00000004 00000004 00000100 00000000";
const RDMA_SERVER: &str = "01200100 01000000 00000000 00002400 00000004 00000004 00000100 00000000";
const NO_BLOCK: &str = "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000";
const TCP_BLOCK: &str = "00000000 00002400 00000004 00000004 00000100 00000000";

const RDMA: &[Row] = &[
    (
        "rdma request inline, copied",
        Rdma,
        MSG_REQ,
        None,
        &[S_REQ, RDMA_INLINE, HDR, HELLO],
    ),
    (
        "rdma request inline, gathered",
        Rdma,
        MSG_REQ,
        Some(84),
        &[S_REQ, RDMA_INLINE, HDR, HELLO],
    ),
    (
        "rdma request to read",
        Rdma,
        MSG_REQ,
        None,
        &[S_REQ, RDMA_READ, HDR],
    ),
    (
        "rdma request writable",
        Rdma,
        MSG_REQ,
        None,
        &[S_REQ, RDMA_WRITABLE, HDR, HELLO],
    ),
    (
        "rdma response inline",
        Rdma,
        MSG_RSP,
        None,
        &[S_RSP, RDMA_RSP_INLINE, RSP, WORLD],
    ),
    (
        "rdma response written",
        Rdma,
        MSG_RSP,
        None,
        &[S_RSP, RDMA_WRITTEN, "52535031"],
    ),
    (
        "rdma response to read",
        Rdma,
        MSG_RSP,
        None,
        &[S_RSP, RDMA_TO_READ, "52535032"],
    ),
    (
        "rdma msg_req inline",
        Rdma,
        MSG_REQ,
        Some(0x59),
        &[S_FIRST, RDMA_FIRST, HDR, HELLO],
    ),
    (
        "rdma msg_rsp inline",
        Rdma,
        MSG_RSP,
        Some(0x5c),
        &[S_FIRST_RSP, RDMA_FIRST_RSP, RSP, WORLD],
    ),
    (
        "rdma cancel_req",
        Rdma,
        0x802,
        None,
        &[BLANK, RDMA_CANCEL, CANCEL_REQ],
    ),
    ("rdma fin_rsp", Rdma, 0x404, None, &[TO_7, RDMA_FIN_RSP]),
];
const RDMA_INLINE: &str = "01000028 00020001 00000000 00040202 00000000 00000000 00040000 \
    00000000 00000000 00000005";
const RDMA_READ: &str = "01000028 00030002 00000000 00050204 00000001 00000000 00040000 \
    00000000 00000000 00000000 00007f11 22334000 00004e20 00001655";
const RDMA_WRITABLE: &str = "01000028 00040003 00000000 00060302 00020000 00000000 00040000 \
    00000000 00000000 00000005 00007f11 22334000 00002ee0 00000547 00007f11 22336ee0 00002ee0 \
    00000547";
const RDMA_RSP_INLINE: &str = "0100002c 00020002 00000000 00040200 00000000 00000000 00000009 \
    00030000 00000000 00000000 00000005";
const RDMA_WRITTEN: &str = "0100002c 00040004 00000000 00060300 00000002 00000000 0000000a \
    00040000 00000000 00000000 00004e20 00002ee0 00001f40";
const RDMA_TO_READ: &str = "0100002c 00050005 00000000 00070400 00000001 00000000 0000000f \
    00040000 00000000 00000000 00000000 00007f99 aabb0000 00004e20 000017c7";
const RDMA_FIRST: &str = "01000028 00010000 00000000 00040202 00000000 00000000 00040000 \
    00000000 00000000 00000005";
const RDMA_FIRST_RSP: &str = "0100002c 00010001 00000000 00040200 00000000 00000000 00000009 \
    00030000 00000000 00000000 00000005";
const RDMA_CANCEL: &str = "01000028 00020000 00000000 01200202 00000000 00000000 001a0000 \
    00000000 00000000 00000000";
const RDMA_FIN_RSP: &str = "0100002c 00030003 00000000 00030200 00000000 00000000 00000004 \
    00000000 00000000 00000000 00000000";

const TCP: &[Row] = &[
    (
        "single request inline",
        TcpSingle,
        MSG_REQ,
        None,
        &[S_REQ, TCP_INLINE, HDR, HELLO],
    ),
    (
        "single request to read",
        TcpSingle,
        MSG_REQ,
        None,
        &[S_REQ, TCP_READ, HDR],
    ),
    (
        "dual request to read",
        TcpDual,
        MSG_REQ,
        None,
        &[S_REQ, TCP_READ, HDR],
    ),
    (
        "dual request writable",
        TcpDual,
        MSG_REQ,
        Some(116),
        &[S_REQ, TCP_WRITABLE, HDR, HELLO],
    ),
    (
        "single response inline",
        TcpSingle,
        MSG_RSP,
        None,
        &[S_RSP, TCP_RSP_INLINE, RSP, WORLD],
    ),
    (
        "single response written",
        TcpSingle,
        MSG_RSP,
        None,
        &[S_RSP, TCP_WRITTEN, "52535031"],
    ),
    (
        "dual response written",
        TcpDual,
        MSG_RSP,
        None,
        &[S_RSP, TCP_WRITTEN, "52535031"],
    ),
    (
        "dual msg_req inline",
        TcpDual,
        MSG_REQ,
        Some(0x54),
        &[S_FIRST, TCP_FIRST, HDR, HELLO],
    ),
    (
        "single msg_req inline",
        TcpSingle,
        MSG_REQ,
        Some(0x59),
        &[S_FIRST, TCP_FIRST, HDR, HELLO],
    ),
    (
        "dual msg_rsp inline",
        TcpDual,
        MSG_RSP,
        Some(0x53),
        &[S_FIRST_RSP, TCP_FIRST_RSP, RSP, WORLD],
    ),
    (
        "dual one_way_req",
        TcpDual,
        0x22,
        Some(0x54),
        &[S_ONE_WAY, TCP_ONE_WAY, "4f575252", "646174"],
    ),
    (
        "dual one_way_rsp",
        TcpDual,
        0x24,
        Some(0x50),
        &[S_RECEIPT, TCP_RECEIPT],
    ),
];
const TCP_INLINE: &str = "01000028 00020000 00000004 00000202 00000000 00000000 00040000 00000000 \
    00000000 00000005";
const TCP_READ: &str = "01000028 00030000 00000005 00000204 00000001 00000000 00040000 00000000 \
    00000000 00000000 000055d0 00001000 00004e20 00000000";
const TCP_WRITABLE: &str = "01000028 00040000 00000006 00000302 00020000 00000000 00040000 \
    00000000 00000000 00000005 000055d0 00010000 00002ee0 00000000 000055d0 00012ee0 00002ee0 \
    00000000";
const TCP_RSP_INLINE: &str = "01000028 00020000 00000009 00000004 02000000 00000000 00030000 \
    00000000 00000000 00000005";
const TCP_WRITTEN: &str = "01000028 00040000 0000000a 00000006 03000002 00000000 00040000 \
    00000000 00000000 00004e20 00002ee0 00001f40";
const TCP_FIRST: &str = "01000028 00010000 00000004 00000202 00000000 00000000 00040000 00000000 \
    00000000 00000005";
const TCP_FIRST_RSP: &str = "01000028 00010000 00000009 00000004 02000000 00000000 00030000 \
    00000000 00000000 00000005";
const S_ONE_WAY: &str = "0000002a 00000001 00000000 00000006 0006ffff 00000000 00000000 00000000 \
    00000000 00000000";
const TCP_ONE_WAY: &str = "01000028 00070000 00000004 00000202 00000000 00000000 00040000 \
    00000000 00000000 00000003";
const S_RECEIPT: &str = "00000007 00000800 00000000 00000006 0005ffff 00000000 00000000 00000000 \
    00000000 00000000";
const TCP_RECEIPT: &str = "01000028 00060000 00000026 00000004 02000000 00000000 00000000 \
    00000000 00000000 00000000";

/// The length word of control frames on a pair of sockets counts the headers only.
const CONTROL: &[Row] = &[
    (
        "dual session_setup_req",
        TcpDual,
        0x102,
        Some(80),
        &[BLANK, SETUP_HEAD, SETUP],
    ),
    (
        "single session_setup_req",
        TcpSingle,
        0x102,
        None,
        &[BLANK, SETUP_HEAD, SETUP],
    ),
    (
        "dual session_setup_rsp",
        TcpDual,
        0x104,
        Some(80),
        &[TO_7, ACCEPT_HEAD, ACCEPT_WITH_PORTAL],
    ),
    (
        "tcp hello_req",
        TcpDual,
        0x202,
        Some(80),
        &[TO_42, HELLO_REQ],
    ),
    (
        "tcp hello_rsp",
        TcpDual,
        0x204,
        Some(80),
        &[TO_7, HELLO_RSP],
    ),
    ("tcp fin_req", TcpDual, 0x402, Some(80), &[TO_42, FIN_REQ]),
    ("tcp fin_rsp", TcpSingle, 0x404, Some(80), &[TO_7, FIN_RSP]),
    (
        "tcp keepalive_req",
        TcpDual,
        0x4002,
        Some(80),
        &[TO_7, KEEPALIVE_REQ],
    ),
    (
        "tcp keepalive_rsp",
        TcpDual,
        0x4004,
        Some(80),
        &[TO_42, KEEPALIVE_RSP],
    ),
    (
        "tcp ack_req",
        TcpDual,
        0x1002,
        Some(80),
        &[CREDITS, ACK_REQ],
    ),
    (
        "dual cancel_req",
        TcpDual,
        0x802,
        Some(80),
        &[BLANK, CANCEL_HEAD, CANCEL_REQ],
    ),
    (
        "single cancel_rsp",
        TcpSingle,
        0x804,
        None,
        &[BLANK, CANCEL_RSP_HEAD, CANCEL_RSP],
    ),
];
const SETUP_HEAD: &str = "01000028 00000000 0000001f 00000202 00000000 00000000 002a0000 00000000 \
    00000000 00000000";
const ACCEPT_HEAD: &str = "01000028 00000000 00000001 0000001f 02000000 00000000 002a0000 \
    00000000 00000000 00000000";
const HELLO_REQ: &str = "01000028 00000000 0000003f 00000202 00000000 00000000 00000000 00000000 \
    00000000 00000000";
const HELLO_RSP: &str = "01000028 00000000 00000001 0000003f 02000000 00000000 00000000 00000000 \
    00000000 00000000";
const FIN_REQ: &str = "01000028 00040000 00000003 00000202 00000000 00000000 00000000 00000000 \
    00000000 00000000";
const FIN_RSP: &str = "01000028 00040000 00000004 00000003 02000000 00000000 00000000 00000000 \
    00000000 00000000";
const KEEPALIVE_REQ: &str = "01000028 00090000 00000002 00000202 00000000 00000000 00000000 \
    00000000 00000000 00000000";
const KEEPALIVE_RSP: &str = "01000028 00090000 00000003 00000002 02000000 00000000 00000000 \
    00000000 00000000 00000000";
const ACK_REQ: &str = "01000028 000d0000 00000008 00000202 00000000 00000000 00000000 00000000 \
    00000000 00000000";
const CANCEL_HEAD: &str = "01000028 00020000 0000001f 00000202 00000000 00000000 001a0000 \
    00000000 00000000 00000000";
const CANCEL_RSP_HEAD: &str = "01000028 00020000 00000007 0000001f 02000000 00000000 001a0000 \
    00000000 00000000 00000000";

const MSG_REQ: u32 = 0x12;
const MSG_RSP: u32 = 0x14;

/// Every frame.
pub(super) fn frames() -> Vec<Vector> {
    let rows = [NEXUS, RDMA, TCP, CONTROL].into_iter().flatten();
    rows.map(|(name, framing, kind, announced, parts)| {
        let body = hex(&parts.concat());
        let len = announced.unwrap_or(body.len());
        let mut bytes = hex(&format!("58494f50 {kind:08x} {len:016x}"));
        bytes.extend(body);
        Vector {
            name,
            framing: *framing,
            bytes,
        }
    })
    .collect()
}

/// Returns the frame `name`.
pub(super) fn get(name: &str) -> Vec<u8> {
    let found = frames().into_iter().find(|vector| vector.name == name);
    found.unwrap_or_else(|| panic!("no vector {name}")).bytes
}

/// Session setup request: id 7, defaults, `rdma://a:1/r`, private `PD`.
pub(super) const SETUP: &str = "00000007 00000000 04000000 00000000 04000000 04000400 000c0002 \
    72646d61 3a2f2f61 3a312f72 5044";
/// Accept: id 42, defaults, private `OK`.
pub(super) const ACCEPT: &str =
    "0000002a 00010000 00000400 00000000 00000400 00000400 04000000 00024f4b";
/// Accept with the portal `rdma://b:2`.
pub(super) const ACCEPT_WITH_PORTAL: &str = "0000002a 00010000 00000400 00000000 00000400 \
    00000400 04000001 0000000a 72646d61 3a2f2f62 3a32";
/// Redirect to `rdma://b:2`.
pub(super) const REDIRECT: &str = "0000002a 00020001 0000000a 72646d61 3a2f2f62 3a32";
/// Reject for want of buffers, private `NO`.
pub(super) const REJECT: &str = "0000002a 00034a5e 3a550002 4e4f";
/// Cancel of transport sn 15, serial 14, sessions 7 and 42.
pub(super) const CANCEL_REQ: &str = "0008000f 00000000 00100000 00070000 002a0000 00000000 000e";
/// Its answer: the message was withdrawn.
pub(super) const CANCEL_RSP: &str = "0008000f 4a5e3a6e 00100000 00070000 002a0000 00000000 000e";
