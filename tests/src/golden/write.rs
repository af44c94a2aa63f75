//! A transcript as text: one line per record, one line per section of a frame.

use std::fmt::Write;

use super::bytes::{hex, quote};
use super::model::{
    Body, Carrier, CmKind, ConnParams, Dialect, Event, Frame, LogLine, OneSided, Place, Posted,
    Program, QpAttrs, Record, Section, Side, Stream, Transcript,
};

/// Sections that are written as quoted text.
pub(super) const TEXTS: [&str; 4] = ["uri", "private_data", "portal_uri", "ulp_hdr"];

/// Sections that are written as hexadecimal numbers or as how to regenerate them.
pub(super) const RUNS: [&str; 2] = ["ulp_pad", "data"];

/// The mark in front of a section's name that tells where it travels.
pub(super) const PLACES: [(Place, &str); 3] =
    [(Place::Main, ""), (Place::Data, "~"), (Place::Bulk, "+")];

/// Names of the dialects.
pub(super) const DIALECTS: [(Dialect, &str); 2] = [(Dialect::Rdma, "rdma"), (Dialect::Tcp, "tcp")];

/// Names of the stream modes.
pub(super) const STREAMS: [(Stream, &str); 3] = [
    (Stream::None, "none"),
    (Stream::Single, "single"),
    (Stream::Dual, "dual"),
];

/// Names of the sides.
pub(super) const SIDES: [(Side, &str); 2] = [(Side::Client, "client"), (Side::Server, "server")];

/// Names of the programs.
pub(super) const PROGRAMS: [(Program, &str); 3] = [
    (Program::Client, "client"),
    (Program::Server, "server"),
    (Program::Second, "second"),
];

/// The name of a value in one of the tables above.
pub(super) fn name<T: PartialEq>(table: &[(T, &'static str)], value: &T) -> &'static str {
    let row = table.iter().find(|(other, _)| other == value);
    row.expect("every value has a name").1
}

fn seconds(at: u64) -> String {
    format!("{}.{:06}", at / 1_000_000, at % 1_000_000)
}

impl Transcript {
    /// The text of the vector file; reading it gives the same transcript.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "transcript {}\ndialect {}\nstream {}\nserver {}\n",
            self.name,
            name(&DIALECTS, &self.dialect),
            name(&STREAMS, &self.stream),
            self.server,
        );
        if let Some(second) = &self.second {
            let _ = writeln!(out, "second {second}");
        }
        let _ = writeln!(out, "client {}", self.client);
        if let Some((client, server)) = self.flushed {
            let _ = writeln!(out, "flushed {client} {server}");
        }
        out.push('\n');
        for record in &self.records {
            write_record(&mut out, record);
        }
        if !self.log.is_empty() {
            out.push('\n');
        }
        for LogLine { program, at, text } in &self.log {
            let _ = writeln!(
                out,
                "log {} {} {text}",
                name(&PROGRAMS, program),
                seconds(*at)
            );
        }
        out
    }
}

fn write_record(out: &mut String, record: &Record) {
    let _ = write!(out, "{} {} ", record.number, seconds(record.at));
    let line = match &record.event {
        Event::Cm {
            side,
            kind,
            status,
            params,
        } => {
            let mut line = format!(
                "cm {} {} status={status}",
                name(&SIDES, side),
                name(&CmKind::NAMES, kind)
            );
            if let Some(p) = params {
                let _ = write!(
                    line,
                    " responder_resources={} initiator_depth={} rnr_retry={} remote_qp={} zeros={}",
                    p.responder_resources, p.initiator_depth, p.rnr_retry, p.remote_qp, p.zeros
                );
            }
            line
        }
        Event::CreateQp { side, attrs } => format!("qp {} {}", name(&SIDES, side), qp(attrs)),
        Event::Connect(params) => format!("connect client {}", conn(params)),
        Event::Accept(params) => format!("accept server {}", conn(params)),
        Event::Disconnect { side, qp } => format!("disconnect {} qp={qp}", name(&SIDES, side)),
        Event::Beacon { side, qp } => format!("beacon {} qp={qp}", name(&SIDES, side)),
        Event::Frame(frame) => return write_frame(out, frame),
        Event::ReadPosted { side, work } => {
            format!("read {} {}", name(&SIDES, side), one_sided(work))
        }
        Event::ReadDone { side, qp, payload } => {
            format!(
                "read-done {} qp={qp} data={}",
                name(&SIDES, side),
                payload.text()
            )
        }
        Event::Write {
            side,
            work,
            payload,
        } => {
            format!(
                "write {} {} data={}",
                name(&SIDES, side),
                one_sided(work),
                payload.text()
            )
        }
        Event::Syn { conn, from, to } => format!("syn conn={conn} from={from} to={to}"),
        Event::Hello { conn, message } => {
            let _ = writeln!(out, "hello conn={conn}");
            return write_section(out, message);
        }
        Event::Fin { conn, side } => format!("fin {} conn={conn}", name(&SIDES, side)),
        Event::Rst { conn, side } => format!("rst {} conn={conn}", name(&SIDES, side)),
    };
    out.push_str(&line);
    out.push('\n');
}

fn qp(a: &QpAttrs) -> String {
    format!(
        "qp={} type={} send_wr={} recv_wr={} send_sge={} recv_sge={} inline={} sig_all={}",
        a.qp,
        a.kind,
        a.max_send_wr,
        a.max_recv_wr,
        a.max_send_sge,
        a.max_recv_sge,
        a.max_inline,
        a.sq_sig_all
    )
}

fn conn(p: &ConnParams) -> String {
    format!(
        "qp={} ps=0x{:x} responder_resources={} initiator_depth={} flow_control={} retry={} \
         rnr_retry={} srq={} private_len={}",
        p.qp,
        p.ps,
        p.responder_resources,
        p.initiator_depth,
        p.flow_control,
        p.retry,
        p.rnr_retry,
        p.srq,
        p.private_len
    )
}

fn posted(p: &Posted) -> String {
    format!("qp={} flags={} chain={}", p.qp, p.flags, p.chain)
}

fn one_sided(w: &OneSided) -> String {
    format!(
        "{} segments={} raddr=0x{:x} rkey=0x{:x} len={}",
        posted(&w.posted),
        w.segments,
        w.raddr,
        w.rkey,
        w.len
    )
}

fn write_frame(out: &mut String, frame: &Frame) {
    let _ = write!(
        out,
        "frame {} {} ",
        name(&SIDES, &frame.side),
        frame.kind.name()
    );
    let _ = match &frame.carrier {
        Carrier::Send {
            posted: p,
            gather,
            receives,
        } => {
            let gather: Vec<String> = gather.iter().map(u32::to_string).collect();
            writeln!(
                out,
                "{} gather={} receives={receives}",
                posted(p),
                gather.join("+")
            )
        }
        Carrier::Socket {
            conn,
            offset,
            data: None,
        } => {
            writeln!(out, "conn={conn} offset={offset}")
        }
        Carrier::Socket {
            conn,
            offset,
            data: Some(data),
        } => {
            writeln!(out, "conn={conn} offset={offset} data={data}")
        }
    };
    for section in &frame.sections {
        write_section(out, section);
    }
}

/// One line for one section.
pub(super) fn write_section(out: &mut String, section: &Section) {
    let _ = write!(out, "  {}{}", name(&PLACES, &section.place), section.name);
    match &section.body {
        Body::Fields(fields) => {
            for field in fields {
                let _ = write!(out, " {}", hex(&field.value));
            }
        }
        Body::Bytes(payload) if TEXTS.contains(&section.name.as_str()) => {
            let _ = write!(out, " {}", quote(&payload.bytes()));
        }
        Body::Bytes(payload) => {
            let _ = write!(out, " {}", payload.text());
        }
    }
    out.push('\n');
}
