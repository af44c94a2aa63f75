//! RoCE v2: UDP port 4791. SENDs of reliable connections are put together into frames; all other
//! packets are counted.

mod frames;
mod mad;
mod order;
mod packet;

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::limits::STREAMS_MAX;
use crate::link::Datagram;
use crate::report::{Reporter, Stamp};
pub(crate) use frames::frame;
use mad::Exchange;
use order::Flow;
use packet::{Operation, Packet};

/// The UDP port of RoCE v2.
pub(crate) const PORT: u16 = 4791;

/// One direction of a queue pair: who sends, who receives, and the receiver's queue pair.
type FlowKey = (IpAddr, IpAddr, u32);

/// All RDMA traffic of a capture.
#[derive(Debug, Default)]
pub(crate) struct Roce {
    flows: BTreeMap<FlowKey, Flow>,
    exchange: Exchange,
}

impl Roce {
    /// Takes a datagram to or from the port.
    pub(crate) fn datagram(
        &mut self,
        datagram: &Datagram<'_>,
        stamp: Stamp,
        out: &mut Reporter<'_>,
    ) {
        let Some(packet) = Packet::parse(datagram) else {
            out.summary
                .count("RoCE packets too short for their headers");
            return;
        };
        let (from, to) = (datagram.from.ip(), datagram.to.ip());
        out.summary.count(packet.operation.counted());
        match packet.operation {
            Operation::Mad => {
                if let Some(name) = self.exchange.mad(from, to, packet.payload) {
                    out.summary.count(name);
                }
            }
            Operation::Answer | Operation::Acknowledge(_) | Operation::Other(_) => {}
            Operation::Send(_) | Operation::Write | Operation::Read(_) | Operation::Atomic => {
                let key = (from, to, packet.queue_pair);
                if !self.flows.contains_key(&key) && self.flows.len() >= STREAMS_MAX {
                    out.summary
                        .count("RoCE packets of more queue pairs than are followed at once");
                    return;
                }
                let flow = self.flows.entry(key).or_default();
                flow.take(&packet, stamp, out);
                flow.tell(key, &mut self.exchange, out);
            }
        }
    }

    /// Nothing more will come.
    pub(crate) fn finish(&mut self, out: &mut Reporter<'_>) {
        for (key, flow) in &mut self.flows {
            flow.finish(out);
            flow.tell(*key, &mut self.exchange, out);
            flow.tell_rest(*key, &mut self.exchange, out);
        }
    }
}
