//! Life of a connection: one flow of messages of a session over one transport connection.
//!
//! The closing part mirrors TCP's states; both sides may start it, also at the same time.

impl State {
    /// Whether a connection has left its transport connection, though it may still be on its list.
    pub(crate) const fn is_off(self) -> bool {
        matches!(
            self,
            Self::Parting | Self::Waiting | Self::Crossed | Self::Ending | Self::Over
        )
    }
}

super::machine! {
    "connection"
    states {
        /// Entry is free.
        Vacant,
        /// Client: waits for the transport connection.
        Opening,
        /// Client: session setup sent or about to be.
        SetupSent,
        /// Client: HELLO sent or about to be.
        HelloSent,
        /// Client: the user closed before the answer came; FIN follows it.
        Leaving,
        /// Server: the user has not decided about the session.
        Requested,
        /// Messages flow.
        Online,
        /// Client: lost, to be made anew; device or peer still hold something of it.
        Parting,
        /// Client: lost; waits for the next attempt.
        Waiting,
        /// Client: lost a race against the peer's connect; waits for it.
        Crossed,
        /// Our FIN is out or queued behind messages.
        FinWait1,
        /// Our FIN is answered, the peer's is awaited.
        FinWait2,
        /// Both FINs crossed; ours is not answered yet.
        Closing,
        /// Everything said; a moment for the last answer to get out.
        TimeWait,
        /// The peer closed first; our FIN is not answered yet.
        LastAck,
        /// Over; outcomes and buffers are still on their way to the user.
        Ending,
        /// The last event is due.
        Over,
    }
    inputs {
        Open, Request, Hello, NexusUp, NexusUpJoin, SetupAccepted, HelloAccepted, Moved, Refused,
        NextPortal,
        Accept, SentAway, Close, Abort, FinReq, FinRsp, Deadline, Lost, Broken, KeepaliveDead,
        Settled, Reported, Retry, Again, Yield, Adopt, Race,
    }
    actions {
        Wait, Ask, SendSetup, SendHello, GoOnline, AnswerHello, Move, Fail, SendFin, AckAndFin,
        Ack, Acked, TimeWait, Finish, Drop, Report, Free, Give, Leave, Part,
        Await, Yield,
    }
    rows {
        Vacant + Open => Opening / Wait;
        Vacant + Request => Requested / Ask;
        Vacant + Hello => Online / AnswerHello;
        Vacant + Moved => FinWait1 / SendFin;
        Vacant + Yield => Leaving / Leave;

        Opening + NexusUp => SetupSent / SendSetup;
        Opening + NexusUpJoin => HelloSent / SendHello;
        Opening + Close => Ending / Give;
        Opening + Abort => Ending / Give;
        Opening + NextPortal => Opening / Move;
        Opening + Lost => Ending / Fail;
        Opening + Deadline => Ending / Fail;
        Opening + Broken => Ending / Fail;

        SetupSent + SetupAccepted => Online / GoOnline;
        SetupSent + Moved => Opening / Move;
        SetupSent + NextPortal => Opening / Move;
        SetupSent + Refused => FinWait1 / Fail;
        SetupSent + Close => Leaving / Leave;
        SetupSent + Abort => Ending / Give;
        SetupSent + Lost => Ending / Fail;
        SetupSent + Broken => Ending / Fail;
        SetupSent + Deadline => Ending / Fail;
        SetupSent + Yield => Crossed / Yield;

        Opening + Adopt => Online / GoOnline;
        SetupSent + Adopt => Online / GoOnline;
        Crossed + Adopt => Online / GoOnline;
        Crossed + Race => Opening / Wait;
        Crossed + Close => Ending / Give;
        Crossed + Abort => Ending / Give;
        Crossed + Lost => Ending / Fail;

        HelloSent + HelloAccepted => Online / GoOnline;
        HelloSent + NextPortal => Opening / Move;
        HelloSent + Close => Leaving / Leave;
        HelloSent + Abort => Ending / Give;
        HelloSent + Lost => Ending / Fail;
        HelloSent + Broken => Ending / Fail;
        HelloSent + Deadline => Ending / Fail;

        Leaving + SetupAccepted => FinWait1 / SendFin;
        Leaving + HelloAccepted => FinWait1 / SendFin;
        Leaving + Moved => FinWait1 / SendFin;
        Leaving + Refused => FinWait1 / SendFin;
        Leaving + Abort => Ending / Drop;
        Leaving + Lost => Ending / Give;
        Leaving + Broken => Ending / Drop;
        Leaving + Deadline => Ending / Drop;
        Leaving + Yield => Ending / Drop;

        Requested + Accept => Online / GoOnline;
        Requested + SentAway => FinWait1 / SendFin;
        Requested + Yield => TimeWait / TimeWait;
        Requested + Close => Ending / Drop, unreachable "its user gets its id by accepting it";
        Requested + Abort => Ending / Drop, unreachable "its user gets its id by accepting it";
        Requested + FinReq => Ending / Drop, unreachable "the client knows no number to name it by";
        Requested + Lost => Ending / Drop;
        Requested + Broken => Ending / Drop;

        Online + Close => FinWait1 / SendFin;
        Online + Moved => FinWait1 / SendFin, unreachable "the answer that moves it is the one that would bring it online";
        Online + FinReq => LastAck / AckAndFin;
        Online + Abort => Ending / Drop;
        Online + Lost => Ending / Drop;
        Online + Broken => Ending / Drop;
        Online + KeepaliveDead => Ending / Drop;

        Online + Retry => Parting / Part;
        Opening + Retry => Parting / Part;
        SetupSent + Retry => Parting / Part;
        HelloSent + Retry => Parting / Part, unreachable "a HELLO goes to a portal, which is left before it is lost, for the next one or none";

        Parting + Settled => Waiting / Await;
        Parting + Close => Ending / Finish;
        Parting + Abort => Ending / Finish;

        Waiting + Again => Opening / Wait;
        Waiting + Close => Ending / Finish;
        Waiting + Abort => Ending / Finish;
        Waiting + Lost => Ending / Finish;

        FinWait1 + FinReq => Closing / Ack;
        FinWait1 + FinRsp => FinWait2 / Acked;
        FinWait1 + Abort => Ending / Drop;
        FinWait1 + Lost => Ending / Drop;
        FinWait1 + Broken => Ending / Drop;
        FinWait1 + Deadline => Ending / Drop;

        FinWait2 + FinReq => TimeWait / TimeWait;
        FinWait2 + Abort => Ending / Drop;
        FinWait2 + Lost => Ending / Drop;
        FinWait2 + Broken => Ending / Drop;
        FinWait2 + Deadline => Ending / Drop;

        Closing + FinRsp => TimeWait / TimeWait;
        Closing + Abort => Ending / Drop;
        Closing + Lost => Ending / Drop;
        Closing + Broken => Ending / Drop;
        Closing + Deadline => Ending / Drop;

        TimeWait + Deadline => Ending / Finish;
        TimeWait + Abort => Ending / Drop;
        TimeWait + Lost => Ending / Finish;
        TimeWait + Broken => Ending / Drop;

        LastAck + FinRsp => Ending / Finish;
        LastAck + Abort => Ending / Drop;
        LastAck + Lost => Ending / Finish;
        LastAck + Broken => Ending / Drop;
        LastAck + Deadline => Ending / Drop;

        Ending + Settled => Over / Report;

        Over + Reported => Vacant / Free;
    }
}
