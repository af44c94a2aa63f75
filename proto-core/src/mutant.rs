//! Deliberate faults (feature `mutants`): the simulator's checkers must find each of them.

#[cfg(feature = "mutants")]
/// One fault, switched on in [`Config::mutant`](crate::Config).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Granted credits are counted twice.
    CreditsTwice,
    /// One credit more is granted than receives are posted.
    GrantUnposted,
    /// The slot of a frame that needs no keeping is not given back.
    SlotLeaked,
    /// Completions of an earlier life of a slot or work entry are accepted.
    StaleAccepted,
    /// The outcome of a message that fails is not told.
    OutcomeLost,
    /// A receipt that was asked for is not sent.
    ReceiptForgotten,
    /// Buffers are said to be back while the peer may reach them.
    ReturnedEarly,
    /// Buffers are said to be back while the device has work on them.
    ReturnedByDevice,
    /// Control frames do not count in the transport's sequence.
    NumberStuck,
    /// A message overtakes one whose payload is still being fetched.
    Overtaken,
    /// The last send of a burst is not signalled.
    LastUnsignaled,
    /// Deadlines of messages pass without an outcome.
    DeadlineIgnored,
    /// The second piece of a transfer goes to the place of the first.
    WrongPlace,
    /// A connection's last event does not wait for its buffers.
    ClosedEarly,
    /// The peer's FIN is not answered.
    FinUnanswered,
    /// The peer is not told that its READ response was fetched.
    ReadAckForgotten,
    /// A request that the peer may have taken is sent again although it is not idempotent.
    RepeatedSilently,
    /// Attempts to connect anew are not spaced over the endpoint.
    AttemptsUnbounded,
    /// What was never posted fails with the connection that is lost.
    QueuedDropped,
    /// One attempt more than the user allows.
    OneAttemptMore,
    /// What is sent again goes in the wrong order.
    RepeatedOutOfOrder,
    /// Attempts begin without a pause.
    PauseSkipped,
    /// The last event of an endpoint that stops comes before the others.
    StoppedEarly,
    /// What this side can do counts as agreed, whatever the peer can.
    AgreedAlone,
    /// A peer that was started again is not recognised.
    RestartMissed,
    /// Cancels go to peers that do not understand them.
    CancelUnasked,
    /// A cancel takes another request than the one that it names.
    CancelledOther,
    /// A request that was cancelled is answered, and shown to its user too.
    CancelledShown,
    /// One request more than the peer never got is sent again.
    ResumedOneMore,
    /// The wait that goes with a request is a thousand times too long.
    WaitStretched,
    /// A request is shown although its sender waits no longer.
    ExpiredShown,
    /// A message that is sent again asks for a receipt that its user has had.
    ReceiptRepeated,
    /// Of two that call each other both accept.
    BothAccepted,
}

#[cfg(feature = "mutants")]
impl Mutant {
    /// The faults that checkers find within 200 seeds.
    pub const ALL: [Self; 33] = [
        Self::CreditsTwice,
        Self::GrantUnposted,
        Self::SlotLeaked,
        Self::StaleAccepted,
        Self::OutcomeLost,
        Self::ReceiptForgotten,
        Self::ReturnedEarly,
        Self::ReturnedByDevice,
        Self::NumberStuck,
        Self::Overtaken,
        Self::LastUnsignaled,
        Self::DeadlineIgnored,
        Self::WrongPlace,
        Self::ClosedEarly,
        Self::FinUnanswered,
        Self::ReadAckForgotten,
        Self::RepeatedSilently,
        Self::AttemptsUnbounded,
        Self::QueuedDropped,
        Self::OneAttemptMore,
        Self::RepeatedOutOfOrder,
        Self::PauseSkipped,
        Self::StoppedEarly,
        Self::AgreedAlone,
        Self::RestartMissed,
        Self::CancelUnasked,
        Self::CancelledOther,
        Self::CancelledShown,
        Self::WaitStretched,
        Self::ExpiredShown,
        Self::ReceiptRepeated,
        Self::ResumedOneMore,
        Self::BothAccepted,
    ];
}

/// Whether a fault is switched on; always false, at no cost, without the feature.
macro_rules! mutated {
    ($globals:expr, $name:ident) => {{
        #[cfg(feature = "mutants")]
        let on = $globals.config.mutant == Some(crate::Mutant::$name);
        #[cfg(not(feature = "mutants"))]
        let on = false;
        on
    }};
}
pub(crate) use mutated;

/// Whether any fault is switched on: the short way of plain messages has none of them.
macro_rules! any_mutant {
    ($globals:expr) => {{
        #[cfg(feature = "mutants")]
        let on = $globals.config.mutant.is_some();
        #[cfg(not(feature = "mutants"))]
        let on = false;
        on
    }};
}
pub(crate) use any_mutant;
