//! Frames that an endpoint sent, cut into the sections of the recordings.

use crate::golden::{
    Body, Carrier, Dialect, Frame, Kind, Layouts, Payload, Place, Posted, Section, Side, Stream,
};

/// How a frame was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format<'a> {
    pub(super) dialect: Dialect,
    pub(super) stream: Stream,
    pub(super) layouts: &'a Layouts,
}

/// Bytes of a frame that are not cut yet: of the SEND or the first socket, of the data socket.
struct Cutter<'a> {
    format: Format<'a>,
    main: &'a [u8],
    data: &'a [u8],
    sections: Vec<Section>,
}

/// Cuts a frame. `main` went by the SEND, or on the single or control socket, `data` on the data
/// socket.
pub(super) fn cut(
    format: Format<'_>,
    side: Side,
    main: &[u8],
    data: &[u8],
) -> Result<Frame, String> {
    let mut cutter = Cutter {
        format,
        main,
        data,
        sections: Vec::new(),
    };
    let word = cutter.layout(Place::Main, "tlv")?.1;
    let row = Kind::ALL.into_iter().find(|row| u64::from(row.2) == word);
    let kind = row.ok_or_else(|| format!("type {word:#x}"))?.0;
    cutter.body(kind)?;
    if !cutter.main.is_empty() || !cutter.data.is_empty() {
        let (main, data) = (cutter.main.len(), cutter.data.len());
        return Err(format!(
            "{} with {main} and {data} bytes too many",
            kind.name()
        ));
    }
    let posted = Posted {
        qp: 0,
        flags: String::new(),
        chain: 0,
    };
    let carrier = Carrier::Send {
        posted,
        gather: Vec::new(),
        receives: 0,
    };
    Ok(Frame {
        side,
        kind,
        carrier,
        sections: cutter.sections,
    })
}

impl<'a> Cutter<'a> {
    fn take(&mut self, place: Place, len: usize) -> Result<&'a [u8], String> {
        let rest = if place == Place::Data {
            &mut self.data
        } else {
            &mut self.main
        };
        let (bytes, tail) = rest
            .split_at_checked(len)
            .ok_or_else(|| format!("{} bytes where {len} are announced", rest.len()))?;
        *rest = tail;
        Ok(bytes)
    }

    /// Cuts a section with named fields; returns its first two fields as numbers.
    fn layout(&mut self, place: Place, name: &str) -> Result<(u64, u64), String> {
        let layouts = self.format.layouts;
        let layout = layouts
            .get(name)
            .ok_or_else(|| format!("no layout {name}"))?;
        let len = layout.fields.iter().map(|field| field.width).sum();
        let bytes = self.take(place, len)?;
        let section = Section::cut(place, name, bytes, layouts)?;
        let Body::Fields(fields) = &section.body else {
            unreachable!("it was cut into fields")
        };
        let number = |at: usize| fields.get(at).map_or(0, crate::golden::Field::number);
        let first = (number(0), number(1));
        self.sections.push(section);
        Ok(first)
    }

    /// Cuts a run of bytes; none is no section.
    fn run(&mut self, place: Place, name: &str, len: u64) -> Result<(), String> {
        let len = usize::try_from(len).map_err(|_| format!("{name} of {len} bytes"))?;
        if len == 0 {
            return Ok(());
        }
        let bytes = self.take(place, len)?;
        let payload = match name {
            "data" => Payload::compact(bytes),
            _ => Payload::Raw(bytes.to_vec()),
        };
        self.sections.push(Section {
            place,
            name: name.to_owned(),
            body: Body::Bytes(payload),
        });
        Ok(())
    }

    /// A field of a section that was cut before.
    fn number(&self, section: &str, field: &str) -> u64 {
        let section = self.sections.iter().rev().find(|s| s.name == section);
        let Some(Section {
            body: Body::Fields(fields),
            ..
        }) = section
        else {
            return 0;
        };
        fields
            .iter()
            .find(|f| f.name == field)
            .map_or(0, crate::golden::Field::number)
    }

    fn body(&mut self, kind: Kind) -> Result<(), String> {
        let rdma = self.format.dialect == Dialect::Rdma;
        let (setup, request, response) = if rdma {
            ("rdma_setup", "rdma_req", "rdma_rsp")
        } else {
            ("tcp_setup", "tcp_req", "tcp_rsp")
        };
        let main = Place::Main;
        match kind {
            Kind::NexusSetupReq => {
                self.layout(main, "nexus_req")?;
                self.layout(main, setup).map(drop)
            }
            Kind::NexusSetupRsp => {
                self.layout(main, "nexus_rsp")?;
                self.layout(main, setup).map(drop)
            }
            Kind::CreditNop => self.layout(main, "nop").map(drop),
            Kind::ReadAck => self.layout(main, "read_ack").map(drop),
            _ => {
                self.layout(main, "ses")?;
                let head = if kind.wire() & 2 != 0 {
                    request
                } else {
                    response
                };
                self.layout(main, head)?;
                self.message(kind, head)
            }
        }
    }

    /// Everything behind the transport header.
    fn message(&mut self, kind: Kind, head: &str) -> Result<(), String> {
        let op = self.number(head, "out_op");
        let is_request = head.ends_with("req");
        let mut behind = 0;
        for _ in 0..self.number(head, "in_num_sge") {
            self.layout(Place::Main, "in_sge")?;
        }
        let list = match (is_request, op) {
            (true, _) | (false, 4) => "out_sge",
            _ => "out_len",
        };
        for _ in 0..self.number(head, "out_num_sge") {
            self.layout(Place::Main, list)?;
            behind += self.number(list, "length");
        }
        let [header, pad, inline] =
            ["ulp_hdr_len", "ulp_pad_len", "ulp_imm_len"].map(|field| self.number(head, field));
        let dual = self.format.stream == Stream::Dual;
        if matches!(
            kind,
            Kind::MsgReq | Kind::MsgRsp | Kind::OneWayReq | Kind::OneWayRsp
        ) {
            self.run(Place::Main, "ulp_hdr", header)?;
            self.run(Place::Main, "ulp_pad", pad)?;
            // On sockets what does not travel inside the frame follows it.
            let (inside, outside) = match (op, is_request) {
                (2, _) => (inline, 0),
                (4, true) => (0, behind),
                (3, false) => (0, inline),
                _ => (0, 0),
            };
            let (socket, data) = match self.format.stream {
                Stream::None => return self.run(Place::Main, "data", inside),
                Stream::Single => (Place::Bulk, Place::Main),
                Stream::Dual => (Place::Data, Place::Data),
            };
            self.run(data, "data", inside)?;
            return self.run(socket, "data", outside);
        }
        let place = if dual { Place::Data } else { Place::Main };
        self.control(kind, place, header)
    }

    /// The payload of a control frame.
    fn control(&mut self, kind: Kind, place: Place, len: u64) -> Result<(), String> {
        match kind {
            Kind::SessionSetupReq => {
                self.layout(place, "setup_req")?;
                let uri = self.number("setup_req", "uri_len");
                self.run(place, "uri", uri)?;
                let private = self.number("setup_req", "private_data_len");
                self.run(place, "private_data", private)
            }
            Kind::SessionSetupRsp => self.answer(place),
            Kind::CancelReq | Kind::CancelRsp => {
                self.layout(place, "cancel")?;
                self.layout(place, "session_cancel").map(drop)
            }
            _ if len > 0 => Err(format!("{} with a payload", kind.name())),
            _ => Ok(()),
        }
    }

    fn answer(&mut self, place: Place) -> Result<(), String> {
        let rest = if place == Place::Data {
            self.data
        } else {
            self.main
        };
        let name = match rest.get(5) {
            Some(1) => "accept",
            Some(2) => "redirect",
            Some(3) => "reject",
            other => return Err(format!("answer {other:?} to a session setup")),
        };
        self.layout(place, name)?;
        for _ in 0..self.number(name, "portals_array_len") {
            self.layout(place, "portal")?;
            let len = self.number("portal", "len");
            self.run(place, "portal_uri", len)?;
        }
        let private = self.number(name, "private_data_len");
        self.run(place, "private_data", private)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{layouts, load_all};

    /// Every recorded frame is cut into the sections that the recording has.
    #[test]
    fn recorded_frames_come_apart_as_recorded() {
        let layouts = layouts().unwrap();
        for transcript in load_all().unwrap() {
            let (dialect, stream) = (transcript.dialect, transcript.stream);
            let format = Format {
                dialect,
                stream,
                layouts: &layouts,
            };
            for (record, frame) in transcript.frames() {
                let main = [frame.bytes(Place::Main), frame.bytes(Place::Bulk)].concat();
                let again = cut(format, frame.side, &main, &frame.bytes(Place::Data)).unwrap();
                let at = format!("{} {}", transcript.name, record.number);
                assert_eq!(again.kind, frame.kind, "{at}");
                assert_eq!(again.sections, frame.sections, "{at}");
            }
        }
    }
}
