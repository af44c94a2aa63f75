//! Life of a socket: from its first byte to its place in a transport connection, or out.
//!
//! ```text
//! accepted  Greeting > Waiting > Bound        opened here  Bound
//!               \         |
//!                Closing <+
//! ```

super::machine! {
    "socket"
    states {
        /// Entry is free.
        Vacant,
        /// Accepted; its connect message is being collected.
        Greeting,
        /// Named its partner, which has not come yet.
        Waiting,
        /// Part of a transport connection.
        Bound,
        /// The driver is told to close it.
        Closing,
    }
    inputs {
        Accepted, Opened, Greeted, Paired, Garbage, Refused, Deadline, Closed, Told, Released,
    }
    actions { Collect, Attach, Wait, Close, Lose, Free }
    rows {
        Vacant + Accepted => Greeting / Collect;
        Vacant + Opened => Bound / Attach;

        Greeting + Greeted => Waiting / Wait;
        Greeting + Paired => Bound / Attach;
        Greeting + Garbage => Closing / Close;
        Greeting + Refused => Closing / Close;
        Greeting + Deadline => Closing / Close;
        Greeting + Closed => Vacant / Free;

        Waiting + Paired => Bound / Attach;
        Waiting + Garbage => Closing / Close;
        Waiting + Refused => Closing / Close;
        Waiting + Deadline => Closing / Close;
        Waiting + Closed => Vacant / Free;

        Bound + Closed => Bound / Lose;
        Bound + Released => Vacant / Free;

        Closing + Told => Vacant / Free;
        Closing + Closed => Vacant / Free;
    }
}
