//! Life of a message, seen from the side that holds it.
//!
//! Outgoing requests and one-ways start at `Queued`; received messages at `Fetching` (their
//! payload is still at the peer) or `Delivered`. Whether the device, the peer or the user still
//! holds a part of the message is counted beside the state; an `Ended` task is free when nobody
//! does.

super::machine! {
    "task"
    states {
        /// Entry is free.
        Vacant,
        /// Outgoing, no byte of it posted.
        Queued,
        /// Outgoing, posted; a one-way without receipt ends with its send completion.
        Sent,
        /// Outgoing, was posted on a connection that is lost; to be sent again.
        Parked,
        /// Outgoing, its answer is being fetched by READ or read off the stream.
        AnswerFetching,
        /// Outcome given before the peer answered; kept until it does or cannot any more.
        Orphaned,
        /// Received, payload not here yet.
        Fetching,
        /// Received, in the user's hands.
        Delivered,
        /// Received and answered; the answer is not posted yet.
        Answering,
        /// The answer is posted.
        Answered,
        /// The answer's payload is being read by the peer.
        AwaitReadAck,
        /// The outcome is given or due.
        Ended,
    }
    inputs {
        Submit, Post, SendDone, SendDoneHeld, Answer, AnswerFetch, FetchDone, FetchFailed, Receipt,
        Expire, Cancel, Flush, Arrive, ArriveFetch, Respond, Release, ReadAck,
        Keep, Requeue,
    }
    actions {
        Enqueue, Mark, Complete, Deliver, Fetch, Receipt, GiveUp, Late, Answer, Drop, Hold,
        Return, Park,
    }
    rows {
        Vacant + Submit => Queued / Enqueue;
        Vacant + Arrive => Delivered / Deliver;
        Vacant + ArriveFetch => Fetching / Fetch;

        Queued + Post => Sent / Mark;
        Queued + Expire => Ended / GiveUp;
        Queued + Cancel => Ended / GiveUp;
        Queued + Flush => Ended / GiveUp;

        Sent + SendDone => Ended / Complete;
        Sent + SendDoneHeld => Sent / Hold;
        Sent + Answer => Ended / Complete;
        Sent + AnswerFetch => AnswerFetching / Fetch;
        Sent + Receipt => Sent / Receipt;
        Sent + Expire => Orphaned / GiveUp;
        Sent + Cancel => Orphaned / GiveUp;
        Sent + Flush => Ended / GiveUp;

        Sent + Keep => Parked / Park;

        Parked + SendDoneHeld => Parked / Hold;
        Parked + Requeue => Queued / Enqueue;
        Parked + Expire => Ended / GiveUp;
        Parked + Cancel => Ended / GiveUp;
        Parked + Flush => Ended / GiveUp;

        AnswerFetching + SendDoneHeld => AnswerFetching / Hold;
        AnswerFetching + FetchDone => Ended / Complete;
        AnswerFetching + FetchFailed => Ended / GiveUp;
        AnswerFetching + Expire => Orphaned / GiveUp;
        AnswerFetching + Cancel => Orphaned / GiveUp;
        AnswerFetching + Flush => Ended / GiveUp;

        Orphaned + SendDone => Ended / Return;
        Orphaned + SendDoneHeld => Orphaned / Hold;
        Orphaned + Answer => Ended / Late;
        Orphaned + AnswerFetch => Ended / Late;
        Orphaned + FetchDone => Ended / Late;
        Orphaned + FetchFailed => Ended / Late;
        Orphaned + Receipt => Orphaned / Hold;
        Orphaned + Flush => Ended / Return;

        Fetching + FetchDone => Delivered / Deliver;
        Fetching + FetchFailed => Ended / Drop;
        Fetching + Flush => Ended / Drop;

        Delivered + Respond => Answering / Answer;
        Delivered + Release => Ended / Drop;
        Delivered + Flush => Delivered / Hold;

        Answering + Post => Answered / Mark;
        Answering + Expire => Ended / GiveUp, unreachable "an answer has no deadline of its own";
        Answering + Flush => Ended / GiveUp;

        Answered + SendDone => Ended / Complete;
        Answered + SendDoneHeld => AwaitReadAck / Hold;
        Answered + ReadAck => Answered / Mark;
        Answered + Flush => Ended / GiveUp;

        AwaitReadAck + ReadAck => Ended / Complete;
        AwaitReadAck + Flush => Ended / GiveUp;
    }
}
