//! Life of a session on one endpoint: who agreed to talk with whom.

super::machine! {
    "session"
    states {
        /// Entry is free.
        Vacant,
        /// Client: setup not answered yet.
        Setup,
        /// Server: the user has not decided yet.
        Requested,
        /// Server: accepted with portals; the client's HELLO is awaited here or elsewhere.
        Accepted,
        /// Nobody may come any more: the client was sent away, or did not come in time.
        Refused,
        /// Messages may flow.
        Online,
        /// Came as a ticket; no connection here yet.
        Imported,
        /// No connection is left; the last event is due.
        Ended,
    }
    inputs {
        Connect, Request, Import, Accept, AcceptPortals, Reject, Redirect, SetupAccepted,
        SetupPortals, SetupRedirected, SetupRejected, Join, Hello, Deadline, LastGone,
        Reported, Adopt,
    }
    actions {
        Start, Ask, Keep, GoOnline, MoveToPortals, Follow, Refuse, Attach, Expire, Report, Free,
    }
    rows {
        Vacant + Connect => Setup / Start;
        Vacant + Request => Requested / Ask;
        Vacant + Import => Imported / Keep;
        Vacant + Adopt => Online / Start;

        Setup + SetupAccepted => Online / GoOnline;
        Setup + SetupPortals => Online / MoveToPortals;
        Setup + SetupRedirected => Setup / Follow;
        Setup + SetupRejected => Refused / Refuse;
        Setup + LastGone => Ended / Report;

        Requested + Accept => Online / GoOnline;
        Requested + AcceptPortals => Accepted / MoveToPortals;
        Requested + Reject => Refused / Refuse;
        Requested + Redirect => Refused / Refuse;
        Requested + Deadline => Refused / Refuse;
        Requested + LastGone => Ended / Report;

        Accepted + Hello => Online / Attach;
        Accepted + Deadline => Refused / Expire;

        Refused + LastGone => Ended / Report;

        Online + Join => Online / Attach;
        Online + Hello => Online / Attach;
        Online + LastGone => Ended / Report;

        Imported + Join => Online / Attach;
        Imported + Hello => Online / Attach;
        Imported + Deadline => Refused / Expire;

        Ended + Reported => Vacant / Free;
    }
}
