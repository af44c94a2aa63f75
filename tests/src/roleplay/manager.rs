//! The recorded events of the communication manager.

use xio_proto::{CmEvent, CmKind, ConnectRequest, wire::Framing};

use super::link::Link;
use super::player::Player;
use super::user::User;
use crate::golden::{CmKind as Recorded, CmParams, Event, Record, Side};

/// Where the recorded client comes from.
const CLIENT: &str = "10.99.0.2:40000";

impl Player<'_> {
    /// Feeds an event of the communication manager; `rest` are the records behind it.
    pub(super) fn communication_manager(
        &mut self,
        kind: Recorded,
        params: Option<CmParams>,
        rest: &[Record],
    ) -> Result<(), String> {
        match kind {
            Recorded::AddrResolved => self.newest(CmKind::AddrResolved),
            Recorded::RouteResolved => self.newest(CmKind::RouteResolved),
            Recorded::ConnectRequest => {
                let params = params.ok_or("a connect request without parameters")?;
                self.connect_request(params.remote_qp)
            }
            Recorded::Established => {
                if let (Side::Client, Some(params), Some(link)) =
                    (self.side, params, self.links.last_mut())
                {
                    link.peer_qp = Some(params.remote_qp);
                }
                self.newest(CmKind::Established)
            }
            Recorded::Disconnected => {
                // The recorder did not write whose it is, but the library disconnects in turn.
                let side = self.side;
                let qp = rest.iter().find_map(|record| match record.event {
                    Event::Disconnect { side: at, qp } if at == side => Some(qp),
                    _ => None,
                });
                let at = self.link(qp.ok_or("a disconnect that is not answered")?)?;
                self.disconnected(at);
                Ok(())
            }
            // It comes after the queue pair is gone here.
            Recorded::TimewaitExit => Ok(()),
        }
    }

    fn newest(&mut self, kind: CmKind) -> Result<(), String> {
        let link = self.links.last().ok_or("nobody connects")?;
        self.host
            .endpoint
            .handle_cm(self.host.now, link.nexus, CmEvent::plain(kind));
        Ok(())
    }

    fn connect_request(&mut self, remote_qp: u32) -> Result<(), String> {
        let User::Server(server) = &self.user else {
            return Err("a client is asked to accept".to_owned());
        };
        let request = ConnectRequest {
            listener: server.listener(self.requests)?,
            peer: CLIENT
                .parse()
                .map_err(|error| format!("{CLIENT}: {error}"))?,
            local: None,
            framing: Framing::Rdma,
            private: &[],
        };
        self.requests += 1;
        let host = &mut self.host;
        let taken = host
            .endpoint
            .handle_connect_request(host.now, host.transport, &request);
        let nexus = taken.map_err(|reason| format!("a client is refused: {reason}"))?;
        let mut link = Link::new(nexus);
        link.peer_qp = Some(remote_qp);
        self.links.push(link);
        Ok(())
    }

    /// Tells the endpoint that a connection is down, if it still has it.
    pub(super) fn disconnected(&mut self, at: usize) {
        let link = &self.links[at];
        if !link.gone {
            let event = CmEvent::plain(CmKind::Disconnected);
            self.host
                .endpoint
                .handle_cm(self.host.now, link.nexus, event);
        }
    }
}
