//! Life of a transport connection, for both roles and both dialects.
//!
//! ```text
//! client  Resolving > Routing > Creating > Priming > Connecting > Handshaking \
//!                                                                              Online <> Idle
//! server              Requested > ServerPriming > Accepting > Awaiting       /      |
//!                                                                            Disconnecting
//!                                                                  Draining > Destroying > Vacant
//! ```

super::machine! {
    "nexus"
    states {
        /// Entry is free.
        Vacant,
        /// Client: address resolution asked.
        Resolving,
        /// Client: route resolution asked.
        Routing,
        /// Client: queue pair (or sockets) being made.
        Creating,
        /// Client: the first receive is being posted.
        Priming,
        /// Client: connect asked.
        Connecting,
        /// Client: established, transport setup asked.
        Handshaking,
        /// Server: queue pair being made for a connect request.
        Requested,
        /// Server: the first receive is being posted.
        ServerPriming,
        /// Server: accept asked.
        Accepting,
        /// Server: established, the peer's setup is awaited.
        Awaiting,
        /// Server: the peer is told that it is refused.
        Refusing,
        /// Set up, with connections on it.
        Online,
        /// Set up, without connections.
        Idle,
        /// Disconnect asked.
        Disconnecting,
        /// In the error state; flushes and late receives come in.
        Draining,
        /// Destruction asked.
        Destroying,
    }
    inputs {
        Open, Request, AddrResolved, AddrError, RouteResolved, RouteError, ConnectRequest,
        ConnectResponse, ConnectError, Unreachable, Rejected, Established, Disconnected,
        DeviceRemoval, MulticastJoin, MulticastError, AddrChange, TimewaitExit, UnknownCm,
        QpReady, DriverFailed, Primed, SetupReq, SetupRsp, SetupRefused, RefusalSent, Frame,
        Fail, Deadline, Unused, Used, Drained, Destroyed,
    }
    actions {
        Resolve, Route, Create, Prime, Connect, Accept, Handshake, Await, Answer, GoOnline,
        Establish, Deliver, Linger, Unlinger, Disconnect, Drain, Destroy, Free, Kill, Wrong,
        Refused, Drop,
    }
    rows {
        Vacant + Open => Resolving / Resolve;
        Vacant + Request => Requested / Create;

        Resolving + AddrResolved => Routing / Route;
        Resolving + AddrError => Destroying / Kill;
        Resolving + Unreachable => Destroying / Kill;
        Resolving + DeviceRemoval => Destroying / Kill;
        Resolving + DriverFailed => Destroying / Kill;
        Resolving + Fail => Destroying / Kill, unreachable "who gives it up leaves it unused first";
        Resolving + Deadline => Destroying / Kill;
        Resolving + Unused => Destroying / Destroy;

        Routing + RouteResolved => Creating / Create;
        Routing + RouteError => Destroying / Kill;
        Routing + Unreachable => Destroying / Kill;
        Routing + AddrChange => Destroying / Kill;
        Routing + DeviceRemoval => Destroying / Kill;
        Routing + DriverFailed => Destroying / Kill;
        Routing + Fail => Destroying / Kill, unreachable "who gives it up leaves it unused first";
        Routing + Deadline => Destroying / Kill;
        Routing + Unused => Destroying / Destroy;

        Creating + QpReady => Priming / Prime;
        Creating + AddrChange => Destroying / Kill;
        Creating + DeviceRemoval => Destroying / Kill;
        Creating + DriverFailed => Destroying / Kill;
        Creating + Fail => Destroying / Kill, unreachable "who gives it up leaves it unused first";
        Creating + Deadline => Destroying / Kill;
        Creating + Unused => Destroying / Destroy;

        Priming + Primed => Connecting / Connect;
        Priming + AddrChange => Draining / Drain;
        Priming + DeviceRemoval => Draining / Drain;
        Priming + DriverFailed => Draining / Drain;
        Priming + Fail => Draining / Drain, unreachable "its receive moves it on before the post can fail";
        Priming + Deadline => Draining / Drain;
        Priming + Unused => Draining / Drain;

        Connecting + Established => Handshaking / Handshake;
        Connecting + Rejected => Draining / Drain;
        Connecting + ConnectError => Draining / Drain;
        Connecting + Unreachable => Draining / Drain;
        Connecting + Disconnected => Draining / Drain;
        Connecting + AddrChange => Draining / Drain;
        Connecting + DeviceRemoval => Draining / Drain;
        Connecting + DriverFailed => Draining / Drain;
        Connecting + Fail => Draining / Drain;
        Connecting + Deadline => Draining / Drain;
        Connecting + Unused => Draining / Drain;

        Handshaking + SetupRsp => Online / GoOnline;
        Handshaking + SetupRefused => Disconnecting / Disconnect;
        Handshaking + SetupReq => Disconnecting / Wrong;
        Handshaking + Frame => Disconnecting / Wrong;
        Handshaking + Disconnected => Draining / Drain;
        Handshaking + Rejected => Draining / Drain;
        Handshaking + Unreachable => Draining / Drain;
        Handshaking + ConnectError => Draining / Drain;
        Handshaking + AddrChange => Disconnecting / Disconnect;
        Handshaking + DeviceRemoval => Draining / Drain;
        Handshaking + DriverFailed => Draining / Drain;
        Handshaking + Fail => Disconnecting / Disconnect;
        Handshaking + Deadline => Disconnecting / Disconnect;
        Handshaking + Unused => Disconnecting / Disconnect;

        Requested + QpReady => ServerPriming / Prime;
        Requested + DriverFailed => Destroying / Refused;
        Requested + AddrChange => Destroying / Refused;
        Requested + DeviceRemoval => Destroying / Refused;
        Requested + Disconnected => Destroying / Refused;
        Requested + Rejected => Destroying / Refused;
        Requested + Unreachable => Destroying / Refused;
        Requested + ConnectError => Destroying / Refused;
        Requested + Fail => Destroying / Refused, unreachable "nothing is posted or received before";
        Requested + Deadline => Destroying / Refused;

        ServerPriming + Primed => Accepting / Accept;
        ServerPriming + DriverFailed => Draining / Drain;
        ServerPriming + AddrChange => Draining / Drain;
        ServerPriming + DeviceRemoval => Draining / Drain;
        ServerPriming + Disconnected => Draining / Drain;
        ServerPriming + Rejected => Draining / Drain;
        ServerPriming + Unreachable => Draining / Drain;
        ServerPriming + ConnectError => Draining / Drain;
        ServerPriming + Fail => Draining / Drain, unreachable "its receive moves it on before the post can fail";
        ServerPriming + Deadline => Draining / Drain;

        Accepting + Established => Awaiting / Await;
        Accepting + SetupReq => Online / Answer;
        Accepting + SetupRefused => Refusing / Answer;
        Accepting + SetupRsp => Disconnecting / Wrong;
        Accepting + Frame => Disconnecting / Wrong;
        Accepting + Rejected => Draining / Drain;
        Accepting + ConnectError => Draining / Drain;
        Accepting + Unreachable => Draining / Drain;
        Accepting + Disconnected => Draining / Drain;
        Accepting + AddrChange => Draining / Drain;
        Accepting + DeviceRemoval => Draining / Drain;
        Accepting + DriverFailed => Draining / Drain;
        Accepting + Fail => Draining / Drain;
        Accepting + Deadline => Draining / Drain;

        Awaiting + SetupReq => Online / Answer;
        Awaiting + SetupRefused => Refusing / Answer;
        Awaiting + SetupRsp => Disconnecting / Wrong;
        Awaiting + Frame => Disconnecting / Wrong;
        Awaiting + Disconnected => Draining / Drain;
        Awaiting + Rejected => Draining / Drain;
        Awaiting + Unreachable => Draining / Drain;
        Awaiting + ConnectError => Draining / Drain;
        Awaiting + AddrChange => Disconnecting / Disconnect;
        Awaiting + DeviceRemoval => Draining / Drain;
        Awaiting + DriverFailed => Draining / Drain;
        Awaiting + Fail => Disconnecting / Disconnect;
        Awaiting + Deadline => Disconnecting / Disconnect;

        Refusing + RefusalSent => Disconnecting / Disconnect;
        Refusing + SetupReq => Disconnecting / Wrong, unreachable "a peer has one receive before it is set up, and used it";
        Refusing + SetupRsp => Disconnecting / Wrong, unreachable "a peer has one receive before it is set up, and used it";
        Refusing + Frame => Disconnecting / Wrong, unreachable "a peer has one receive before it is set up, and used it";
        Refusing + Disconnected => Draining / Drain;
        Refusing + DeviceRemoval => Draining / Drain;
        Refusing + DriverFailed => Draining / Drain;
        Refusing + AddrChange => Disconnecting / Disconnect;
        Refusing + Fail => Disconnecting / Disconnect;
        Refusing + Deadline => Disconnecting / Disconnect;

        Online + Established => Online / Establish;
        Online + Frame => Online / Deliver;
        Online + SetupReq => Disconnecting / Wrong;
        Online + SetupRsp => Disconnecting / Wrong;
        Online + Unused => Idle / Linger;
        Online + Disconnected => Draining / Drain;
        Online + Rejected => Draining / Drain;
        Online + Unreachable => Draining / Drain;
        Online + ConnectError => Draining / Drain;
        Online + AddrChange => Disconnecting / Disconnect;
        Online + DeviceRemoval => Draining / Drain;
        Online + DriverFailed => Draining / Drain;
        Online + Fail => Disconnecting / Disconnect;

        Idle + Established => Idle / Establish;
        Idle + Frame => Idle / Deliver;
        Idle + SetupReq => Disconnecting / Wrong;
        Idle + SetupRsp => Disconnecting / Wrong;
        Idle + Used => Online / Unlinger;
        Idle + Disconnected => Draining / Drain;
        Idle + Rejected => Draining / Drain;
        Idle + Unreachable => Draining / Drain;
        Idle + ConnectError => Draining / Drain;
        Idle + AddrChange => Disconnecting / Disconnect;
        Idle + DeviceRemoval => Draining / Drain;
        Idle + DriverFailed => Draining / Drain;
        Idle + Fail => Disconnecting / Disconnect;
        Idle + Deadline => Disconnecting / Disconnect;

        Disconnecting + Disconnected => Draining / Drain;
        Disconnecting + Rejected => Draining / Drain;
        Disconnecting + Unreachable => Draining / Drain;
        Disconnecting + ConnectError => Draining / Drain;
        Disconnecting + DeviceRemoval => Draining / Drain;
        Disconnecting + DriverFailed => Draining / Drain;
        Disconnecting + Fail => Draining / Drain;
        Disconnecting + Deadline => Draining / Drain;
        Disconnecting + Frame => Disconnecting / Drop;
        Disconnecting + SetupReq => Disconnecting / Drop;
        Disconnecting + SetupRsp => Disconnecting / Drop;

        Draining + Drained => Destroying / Destroy;
        Draining + Deadline => Destroying / Destroy;
        Draining + Frame => Draining / Deliver;
        Draining + SetupReq => Draining / Drop;
        Draining + SetupRsp => Draining / Drop;

        Destroying + Destroyed => Vacant / Free;
    }
}
