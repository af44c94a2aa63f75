//! Users that call each other, and want one connection.

use xio_proto::wire::wire_identity;
use xio_proto::{CommandError, ConnectOptions, SessionOpen};

use super::{Act, TRANSPORT, World, address};

impl World {
    /// Whoever calls may send at once; whoever has one with the peer, or is asked for one, need not call.
    pub(super) fn call(&mut self, i: usize) {
        let user = 1 + self.sides[i].user.at as u64;
        let setup = SessionOpen {
            uri: "rdma://x",
            private: b"",
        };
        let options = ConnectOptions {
            only_with: Some(wire_identity(self.config.identity, 1 - i as u8)),
            ..ConnectOptions::new(user)
        };
        let (now, to) = (self.now, address(1 - i));
        let side = &mut self.sides[i];
        let memory = &mut side.memory;
        match side
            .core
            .connect(now, TRANSPORT, to, &setup, &options, memory)
        {
            Ok(connection) => {
                side.user.open.insert(user, connection);
                side.user.connection = Some(connection);
            }
            Err(CommandError::Exists(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// If they call and nobody closes, each has one connection in the end, and all messages came.
    pub(super) fn check_calls(&self) {
        let acts = self.scripts.iter().flat_map(|script| *script);
        if !self.stays_up || acts.filter(|act| **act == Act::Call).count() == 0 {
            return;
        }
        for (side, other) in [(0, 1), (1, 0)] {
            let (user, peer) = (&self.sides[side].user, &self.sides[other].user);
            assert_eq!(user.open.len(), 1, "one connection: {user:?}");
            let sent = user.sent.len();
            assert_eq!(peer.came.len(), sent, "not all came: {user:?} {peer:?}");
        }
    }
}
