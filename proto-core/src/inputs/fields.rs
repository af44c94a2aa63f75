//! How the plain types of the interface are written, field by field. A field that is added to one
//! of them does not compile until it is written too.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;

use super::Bytes;
use super::codec::{DecodeError, Field, Malformed, Reader, Writer};
use crate::config::{
    Config, ConnectOptions, ConnectionPolicy, Keepalive, ListenOptions, OnExpiry, PoolMemory,
    Reconnect, Rendezvous, TransportLimits,
};
use crate::endpoint::{
    ConnectRequest, Message, RemoteMemory, RequestOptions, SessionOpen, SessionTicket,
};
use crate::error::{Reason, Refusal, Resource, Step, WorkStatus};
use crate::ids::{
    ConnectionId, ListenerId, NexusId, RegionId, SessionId, SocketId, TaskId, TransportId, WrId,
};
use crate::input::{CmEvent, CmKind, Completion};
use crate::memory::{Segment, SlotId};
use crate::output::Access;
use crate::storage::Counts;
use crate::time::Instant;
use crate::wire::{Dialect, Extensions, Framing, Violation, What};

/// A struct as its fields in the given order.
macro_rules! structs {
    ($($name:ident $(<$life:lifetime>)? { $($field:ident),* $(,)? })*) => {$(
        impl<'a> Field<'a> for $name $(<$life>)? {
            fn put(&self, w: &mut Writer<'_>) {
                let Self { $($field),* } = self;
                $($field.put(w);)*
            }
            fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Field::get(r)?),* })
            }
        }
    )*};
}

/// An enum as the number of the variant, then its value.
macro_rules! enums {
    ($($name:ident { $($number:literal $variant:ident $(($value:ident))? $({ $($field:ident),* })?,)* })*) => {$(
        impl<'a> Field<'a> for $name {
            fn put(&self, w: &mut Writer<'_>) {
                match self {
                    $(Self::$variant $(($value))? $({ $($field),* })? => {
                        w.number($number);
                        $($value.put(w);)?
                        $($($field.put(w);)*)?
                    })*
                }
            }
            fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(match r.number()? {
                    $($number => Self::$variant
                        $(({ let $value = Field::get(r)?; $value }))?
                        $({ $($field: Field::get(r)?),* })?,)*
                    other => return r.error(Malformed::UnknownVariant, other),
                })
            }
        }
    )*};
}

/// An id as its two halves.
macro_rules! ids {
    ($($name:ident),*) => {$(
        impl Field<'_> for $name {
            fn put(&self, w: &mut Writer<'_>) {
                self.at().put(w);
                self.generation().put(w);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self::new(u32::get(r)?, u32::get(r)?))
            }
        }
    )*};
}

ids!(
    ListenerId,
    NexusId,
    SessionId,
    ConnectionId,
    TaskId,
    SocketId,
    RegionId
);

/// A value that is another one in a different coat.
macro_rules! coats {
    ($($name:ident: $inner:ty, $out:expr, $in:expr;)*) => {$(
        impl Field<'_> for $name {
            fn put(&self, w: &mut Writer<'_>) {
                let inner: $inner = $out(*self);
                inner.put(w);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok($in(<$inner>::get(r)?))
            }
        }
    )*};
}

coats! {
    TransportId: u8, |id: Self| id.0, Self;
    SlotId: u32, |id: Self| id.0, Self;
    WrId: u64, Self::to_bits, Self::from_bits;
    Instant: u64, Self::as_nanos, Self::from_nanos;
}

impl<'a> Field<'a> for Bytes<'a> {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
    }
    fn get(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Field::get(r).map(Self)
    }
}

impl Field<'_> for Duration {
    fn put(&self, w: &mut Writer<'_>) {
        self.as_secs().put(w);
        self.subsec_nanos().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let secs = u64::get(r)?;
        let nanos = u32::get(r)?;
        if nanos >= 1_000_000_000 {
            return r.error(Malformed::Number, nanos.into());
        }
        Ok(Self::new(secs, nanos))
    }
}

impl Field<'_> for SocketAddr {
    fn put(&self, w: &mut Writer<'_>) {
        match self {
            Self::V4(address) => {
                w.number(4);
                w.raw(&address.ip().octets());
            }
            Self::V6(address) => {
                w.number(6);
                w.raw(&address.ip().octets());
                address.flowinfo().put(w);
                address.scope_id().put(w);
            }
        }
        self.port().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bits = |bytes: &[u8]| bytes.iter().fold(0u128, |n, b| n << 8 | u128::from(*b));
        match r.number()? {
            4 => {
                let ip = Ipv4Addr::from_bits(bits(r.raw(4)?) as u32);
                Ok(Self::new(IpAddr::V4(ip), u16::get(r)?))
            }
            6 => {
                let ip = Ipv6Addr::from_bits(bits(r.raw(16)?));
                let (flow, scope) = (u32::get(r)?, u32::get(r)?);
                Ok(SocketAddrV6::new(ip, u16::get(r)?, flow, scope).into())
            }
            other => r.error(Malformed::UnknownVariant, other),
        }
    }
}

impl Field<'_> for Access {
    fn put(&self, w: &mut Writer<'_>) {
        self.bits().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u8::get(r).map(Self::from_bits_retain)
    }
}

impl Field<'_> for Extensions {
    fn put(&self, w: &mut Writer<'_>) {
        self.bits().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u32::get(r).map(Self::from_bits_retain)
    }
}

impl Field<'_> for What {
    fn put(&self, w: &mut Writer<'_>) {
        w.number(*self as u64);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = r.number()?;
        let known = usize::try_from(number).ok();
        match known.and_then(|at| Self::ALL.get(at)) {
            Some(what) => Ok(*what),
            None => r.error(Malformed::UnknownVariant, number),
        }
    }
}

impl Field<'_> for CmKind {
    fn put(&self, w: &mut Writer<'_>) {
        self.number().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u32::get(r).map(Self::from_number)
    }
}

structs! {
    Violation { what, offset, value }
    Segment { addr, len, lkey, rkey }
    ListenOptions { user, backlog }
    ConnectOptions { local, dual_stream, own_nexus, user, reconnect, only_with }
    Reconnect { attempts_max, give_up_after, first_delay, max_delay }
    SessionOpen<'a> { uri, private }
    SessionTicket {
        own_id, peer_id, client, peer_depth_messages, peer_depth_bytes, joins, expires,
    }
    RemoteMemory { addr, len, key }
    Message<'a> { slot, header_len, slot_data, data, user, prompt }
    RequestOptions<'a> { into, receipt, force_read, force_write, deadline, last_in_batch, idempotent }
    CmEvent<'a> { kind, status, local, private }
    ConnectRequest<'a> { listener, peer, local, framing, private }
    Completion { wr, status, len }
    Keepalive { time, interval, probes }
    ConnectionPolicy { on_expiry, rendezvous, provide_timeout, deadline }
    PoolMemory { addr, lkey, chunk, chunks }
    TransportLimits {
        dialect, sq_depth, sq_bytes, rq_depth, cq_depth, max_sge, max_inline, max_reads,
        max_message, shared_receive_queue, signal_every,
    }
    Counts {
        listeners, nexuses, sessions, connections, tasks, rx_slots, tx_slots, work, sockets,
        extents, regions,
    }
}

/// The configuration: without the deliberate fault of a mutant, which no recording carries.
macro_rules! config {
    ($($field:ident),* $(,)?) => {
        impl Field<'_> for Config {
            fn put(&self, w: &mut Writer<'_>) {
                let Self {
                    $($field,)*
                    #[cfg(feature = "mutants")]
                    mutant: _,
                } = self;
                $($field.put(w);)*
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self {
                    $($field: Field::get(r)?,)*
                    #[cfg(feature = "mutants")]
                    mutant: None,
                })
            }
        }
    };
}

config! {
    endpoint, identity, incarnation, seed, extensions, slot_size, rx_slots, tx_slots, buffer_size, inline_data_max,
    header_max, sge_max, half_open_max, rq_depth, min_grant, depth_messages, depth_bytes,
    queue_messages, queue_bytes, queue_bytes_all, flow_control, payload_max, redirects_max, connect_timeout,
    setup_timeout, fin_timeout, time_wait, linger, drain_timeout, provide_timeout, keepalive, policy,
    reconnects_per_second, incompatible_time,
}

enums! {
    Dialect {
        0 Rdma,
        1 Tcp,
    }
    Framing {
        0 Rdma,
        1 TcpSingle,
        2 TcpDual,
    }
    OnExpiry {
        0 Hold,
        1 Revoke,
        2 Disconnect,
    }
    Rendezvous {
        0 Ask,
        1 Pool { max_bytes },
    }
    WorkStatus {
        0 Success,
        1 Flushed,
        2 RetryExceeded,
        3 RnrRetryExceeded,
        4 RemoteAccess,
        5 LocalAccess,
        6 Other(number),
    }
    Step {
        0 Connect,
        1 SessionSetup,
        2 Fin,
        3 Keepalive,
        4 Message,
        5 Provide,
    }
    Resource {
        0 Listeners,
        1 Nexuses,
        2 Sessions,
        3 Connections,
        4 Tasks,
        5 SendSlots,
        6 ReceiveSlots,
        7 Sockets,
        8 Extents,
        9 Regions,
        10 WorkEntries,
        11 Completions,
        12 Queue,
    }
    Refusal {
        1 Version { asked, spoken },
        2 BufferSize { asked, least },
        3 Depth { asked, least },
        4 NoResources { need, have },
        5 TooEarly,
        6 NotAccepting,
    }
    Reason {
        0 Closed,
        1 PeerClosed,
        2 Aborted,
        3 Rejected(code),
        4 Redirected,
        5 MovedToPortals,
        6 TooManyRedirects(times),
        7 Disconnected,
        8 Refused,
        9 Unreachable(status),
        10 AddressError(status),
        11 RouteError(status),
        12 ConnectError(status),
        13 SetupRefused(status),
        14 TimedOut(step),
        15 Violation(violation),
        16 WorkFailed(status),
        17 PostFailed(error),
        18 DriverFailed(error),
        19 DeviceRemoved,
        20 NoResources { what, need, have },
        21 Shutdown,
        22 SetupTooLong { len, max },
        23 PeerRestarted { later },
        24 TurnedAway(refusal),
        25 WrongPeer { found },
        26 CannotCross { peer },
        27 RacesLost(races),
    }
}
