//! What is held back, and what fails.

use xio_proto::{CmKind, Control, Work};

/// What a driver does with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Go,
    /// It is begun, and nothing comes of it until [`Rig::let_go`](super::Rig::let_go).
    Hold,
    /// It fails with this number.
    Fail(i32),
}

/// Decides about what one side's driver is asked for.
type Judge<T> = Box<dyn FnMut(&T) -> Verdict>;

/// What is held back on one side.
pub struct Gate {
    /// Steps of the communication manager.
    pub control: Judge<Control>,
    /// Work requests.
    pub work: Judge<Work>,
    /// Events of the communication manager that the wire itself makes; `false` loses one.
    pub event: Box<dyn FnMut(CmKind) -> bool>,
    /// Work is not asked for at all.
    pub idle: bool,
    /// Frames that arrive wait before they take a receive.
    pub frames: bool,
    /// Completions of sends, READs and WRITEs wait.
    pub sends: bool,
    /// What a drain flushes waits.
    pub flushes: bool,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            control: Box::new(|_| Verdict::Go),
            work: Box::new(|_| Verdict::Go),
            event: Box::new(|_| true),
            idle: false,
            frames: false,
            sends: false,
            flushes: false,
        }
    }
}

impl Gate {
    /// Holds steps that are like this.
    pub fn hold(mut self, is: fn(&Control) -> bool) -> Self {
        self.control = Box::new(move |control| match is(control) {
            true => Verdict::Hold,
            false => Verdict::Go,
        });
        self
    }
    /// Fails steps that are like this.
    pub fn fail(mut self, is: fn(&Control) -> bool, code: i32) -> Self {
        self.control = Box::new(move |control| match is(control) {
            true => Verdict::Fail(code),
            false => Verdict::Go,
        });
        self
    }
    /// Holds work that is like this.
    pub fn hold_work(mut self, is: fn(&Work) -> bool) -> Self {
        self.work = Box::new(move |work| match is(work) {
            true => Verdict::Hold,
            false => Verdict::Go,
        });
        self
    }
    /// Fails to post work that is like this.
    pub fn fail_work(mut self, is: fn(&Work) -> bool, code: i32) -> Self {
        self.work = Box::new(move |work| match is(work) {
            true => Verdict::Fail(code),
            false => Verdict::Go,
        });
        self
    }
    /// Loses events of this kind.
    pub fn lose(mut self, kind: CmKind) -> Self {
        self.event = Box::new(move |came| came != kind);
        self
    }
}
