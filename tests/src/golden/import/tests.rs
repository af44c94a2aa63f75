//! A small recording is converted; the same with one fact changed is refused.

use super::import;
use crate::golden::{Event, Layouts, Payload, Place, Side, Stream, Transcript};

const LAYOUTS: &str = "\
tlv magic:4 type:4 len:8
nop hdr_len:2 sn:2 ack_sn:2 credits:2 opcode:1 flags:1 pad:2?
connect sock_type:4 second_port:2 pad:2
nexus_req version:2 flags:2 cid:4
tcp_setup buffer_sz:8 pad:4?
";

const RDMA: &str = "\
# recorded RDMA transcript 'rdma-small' (both peers)
# server: server program on rdma://a:1  -p x
# client: client program on rdma://a:1/r  disc

   0  t=0.000000  server CM_EVENT  event=RDMA_CM_EVENT_CONNECT_REQUEST status=0 \
responder_resources=128 initiator_depth=128 rnr_retry=3 remote_qp=17 privlen=56
    private data: 56 zero bytes

   1  t=0.100000  S->C SEND  CREDIT_NOP  len=28   [qp=18 op=SEND flags=FSI chain=0 nsge=2]  \
(recv WRs posted so far by server: 289)
    [0000 +4  ] tlv.magic                          58494f50                   0x58494f50 XIOP
    [0004 +4  ] tlv.type                           00000041                   0x41 CREDIT_NOP
    [0008 +8  ] tlv.len                            000000000000000c           12
    [0010 +2  ] nop.hdr_len                        000c                       12
    [0012 +2  ] nop.sn                             0005                       5
    [0014 +2  ] nop.ack_sn                         ffff                       0xffff
    [0016 +2  ] nop.credits                        001f                       31
    [0018 +1  ] nop.opcode                         00                         0
    [0019 +1  ] nop.flags                          00                         0
    [001a +2  ] nop.pad (uninit)                   0007                       0x7
    -- hex (gathered from SGEs of 20+8 bytes):
    000000  58 49 4f 50 00 00 00 41 00 00 00 00 00 00 00 0c  |XIOP...A........|
    000010  00 0c 00 05 ff ff 00 1f 00 00 00 07              |............|

   2  t=0.200000  S->C RDMA_WRITE  len=128   [qp=18 op=RDMA_WRITE flags= chain=0 nsge=1 \
raddr=0x10 rkey=0x2]  (data placed in peer memory; no peer completion)
    000000  50 00 00 00 50 00 00 01 50 00 00 02 50 00 00 03  |P...P...P...P...|
     ...... (96 bytes not shown; full message is 128 bytes, sha256 @DIGEST@)
    000070  50 00 00 1c 50 00 00 1d 50 00 00 1e 50 00 00 1f  |P...P...P...P...|

# work requests flushed at close (IBV_WC_WR_FLUSH_ERR): client 285, server 286
# cross-check C->S: posted SENDs 0, received 0, byte-identical (in order) 0
# cross-check S->C: posted SENDs 1, received 1, byte-identical (in order) 1
######## client log
[C   1.2500] --- step disc
library talk
";

const TCP: &str = "\
# recorded TCP transcript 'tcp-small'
# server: server program on tcp://a:1
# client: client program on tcp://a:1/r
# conn#0 a:7 -> a:1  C->S 44 bytes in 2 segs, S->C 0 bytes in 0 segs

   0  t=0.000000  TCP SYN  conn#0 a:7 -> a:1

   1  t=0.000001  C->S conn#0 CONNECT_MSG 8 bytes: 0000000100000000   sock_type=1 SINGLE_SOCK \
second_port=0 pad=0x0000

   2  t=0.000002  C->S conn#0  NEXUS_SETUP_REQ  ctl=36 bytes
    [0000 +4  ] tlv.magic                          58494f50                   0x58494f50 XIOP
    [0004 +4  ] tlv.type                           00000082                   0x82 NEXUS_SETUP_REQ
    [0008 +8  ] tlv.len                            0000000000000014           20
    [0010 +2  ] nexus.version                      0100                       0x100
    [0012 +2  ] nexus.flags                        0000                       0
    [0014 +4  ] nexus.cid                          00000000                   0
    [0018 +8  ] setup.buffer_sz                    0000000000002400           9216
    [0020 +4  ] setup.pad (uninit)                 00000000                   0x0
    -- hex, stream offset 8:
    000000  58 49 4f 50 00 00 00 82 00 00 00 00 00 00 00 14  |XIOP............|
    000010  01 00 00 00 00 00 00 00 00 00 00 00 00 00 24 00  |..............$.|
    000020  00 00 00 00                                      |....|

   3  t=0.000003  TCP FIN  conn#0 S->C
";

fn small(text: &str) -> Result<Transcript, String> {
    let digest = crate::golden::digest(&crate::golden::Pattern::Response.bytes(128));
    let text = text.replace("@DIGEST@", &crate::golden::hex(&digest));
    import(&text, &Layouts::parse(LAYOUTS).unwrap())
}

#[test]
fn a_small_rdma_recording() {
    let transcript = small(RDMA).unwrap();
    assert_eq!(
        (&*transcript.name, &*transcript.server),
        ("rdma-small", "rdma://a:1 -p x")
    );
    assert_eq!(
        (transcript.stream, transcript.flushed),
        (Stream::None, Some((285, 286)))
    );
    assert!(matches!(
        &transcript.records[0].event,
        Event::Cm { side: Side::Server, params: Some(params), .. } if params.zeros == 56
    ));
    let (record, frame) = transcript.frames().next().unwrap();
    assert_eq!((record.number, record.at), (1, 100_000));
    assert_eq!(frame.number("nop", "credits"), Some(31));
    assert_eq!(frame.gathered(), 8);
    assert_eq!(
        frame.bytes(Place::Main)[16..],
        [0, 12, 0, 5, 255, 255, 0, 31, 0, 0, 0, 7]
    );
    assert!(matches!(
        &transcript.records[2].event,
        Event::Write { work, payload: Payload::Regenerated { len: 128, .. }, .. }
            if work.raddr == 16
    ));
    assert_eq!(
        (transcript.log.len(), &*transcript.log[0].text),
        (1, "step disc")
    );
}

#[test]
fn a_small_tcp_recording() {
    let transcript = small(TCP).unwrap();
    assert_eq!(transcript.stream, Stream::Single);
    let (_, frame) = transcript.frames().next().unwrap();
    assert_eq!(frame.number("tcp_setup", "buffer_sz"), Some(9216));
    assert_eq!(transcript.records.len(), 4);
}

/// Each changes one fact, and names what the refusal must mention.
#[test]
fn contradictions_are_refused() {
    let changes = [
        (RDMA, "0x58494f50 XIOP", "0x58494f50 XIOQ", "tlv.magic"),
        (RDMA, "12\n    [0012", "13\n    [0012", "nop.hdr_len"),
        (
            RDMA,
            "nop.sn                             0005",
            "nop.sn  0006",
            "nop.sn",
        ),
        (RDMA, "0xffff\n", "0xfffe\n", "nop.ack_sn"),
        (RDMA, "[0014 +2  ]", "[0014 +4  ]", "nop.ack_sn"),
        (RDMA, "[0012 +2  ]", "[0013 +2  ]", "nop.sn"),
        (RDMA, "nop.pad (uninit)", "nop.pad", "no layout"),
        (RDMA, "nop.opcode", "nop.operation", "no layout"),
        (RDMA, "0x41 CREDIT_NOP", "0x41 MSG_REQ", "tlv.type"),
        (RDMA, "SEND  CREDIT_NOP", "SEND  MSG_REQ", "type"),
        (RDMA, "len=28", "len=27", "add up"),
        (RDMA, "nsge=2", "nsge=1", "add up"),
        (RDMA, "20+8", "20+7", "add up"),
        (RDMA, "00 1f 00 00 00 07", "00 1f 00 00 00 08", "nop.pad"),
        (
            RDMA,
            "00 1f 00 00 00 07 ",
            "00 1f 00 00 00 07 01",
            "without a name",
        ),
        (RDMA, "    000010  00", "    000011  00", "dump goes on"),
        (RDMA, "status=0 ", "status=0 news=1 ", "news"),
        (RDMA, "56 zero", "55 zero", "private data"),
        (RDMA, "sha256 ", "sha256 0", "digest"),
        (RDMA, "96 bytes not", "95 bytes not", "dump goes on"),
        (RDMA, "message is 128", "message is 129", "add up"),
        (
            RDMA,
            "50 00 00 1f  |",
            "50 00 00 2f  |",
            "end of the payload",
        ),
        (RDMA, "50 00 00 02 50", "50 00 00 09 50", "no pattern"),
        (
            RDMA,
            "RDMA_WRITE  len=128",
            "RDMA_WRITE  len=124",
            "instead of 124",
        ),
        (RDMA, "flags= chain", "flags= more=1 chain", "more"),
        (RDMA, "   2  t=0.2", "   2  t=0.0", "out of order"),
        (RDMA, "   2  t=0.2", "   3  t=0.2", "out of order"),
        (RDMA, "posted SENDs 1", "posted SENDs 2", "S->C"),
        (RDMA, "--- step", "--- stop", "unknown output"),
        (RDMA, "    private data", "    public data", "unknown line"),
        (TCP, "C->S 44", "C->S 45", "socket 0"),
        (TCP, "offset 8", "offset 9", "offset 9"),
        (TCP, "ctl=36", "ctl=35", "announces"),
        (TCP, "1 SINGLE_SOCK", "2 SINGLE_SOCK", "connect message"),
        (TCP, "TCP FIN", "TCP END", "stream offset"),
        (TCP, "conn#0 S->C\n", "conn#0 S-C\n", "neither"),
    ];
    for (text, from, to, mention) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from:?} is not there once");
        let error = small(&text.replace(from, to)).expect_err(to);
        assert!(error.contains(mention), "{from:?} -> {to:?}: {error}");
    }
}
