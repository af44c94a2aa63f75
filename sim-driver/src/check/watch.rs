//! What the user of one endpoint may hear next, from what it called and has heard.

use xio_proto::{Applied, ConnectionId, Event, Input, SessionId, TaskId, Trace};

use super::Check;

/// How far a connection has come, as its user knows it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// Asked for, or accepted.
    Opening,
    /// `Established`, or `Reconnected`.
    Up,
    /// `Reconnecting`.
    Lost,
    /// `ConnectFailed`.
    Failed,
    /// `Closed`: nothing follows.
    Over,
}

#[derive(Copy, Clone, Debug)]
struct Line {
    id: ConnectionId,
    user: u64,
    stage: Stage,
    session: Option<SessionId>,
    /// Its user asked for it to be made anew when it is lost.
    again: bool,
    /// Its user has said that it is to end.
    ends: bool,
    /// Messages whose outcome is to come.
    due: u32,
    /// Messages with an outcome, whose buffers are to come back.
    lent: u32,
}

/// What a message is to its user.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Role {
    Request,
    OneWay {
        receipt: bool,
    },
    Answer,
    Direct,
    /// Received, or about to be.
    Received,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Step {
    /// Taken: its outcome is to come.
    Due,
    /// Its outcome came, its buffers did not.
    Lent,
    /// Received: its payload waits for memory, or for the user to hear of it.
    Waiting,
    /// In the user's hands.
    Held,
    /// Nothing follows.
    Over,
}

#[derive(Copy, Clone, Debug)]
struct Task {
    id: TaskId,
    line: usize,
    role: Role,
    step: Step,
    user: u64,
    /// A receipt came before the outcome.
    receipted: bool,
    /// Memory for its payload was given.
    provided: bool,
}

/// The command under way, as far as its result matters.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Command {
    #[default]
    Other,
    Open {
        user: u64,
        again: bool,
    },
    Accept {
        user: u64,
        session: SessionId,
        silent: bool,
    },
    /// `close` and `abort`.
    End(ConnectionId),
    /// `reject` and `redirect`.
    Turn(SessionId),
    Send {
        connection: ConnectionId,
        user: u64,
        role: Role,
    },
    Respond {
        task: TaskId,
        user: u64,
    },
    Provide(TaskId),
    Refuse(TaskId),
    Release(TaskId),
    Stop,
}

/// A session that asked for an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Guest {
    Asks,
    Answered,
}

/// What one user may hear of one endpoint. It is told everything that enters the endpoint and what
/// came of it (as an observer, or by hand), knows no table of the endpoint's, and keeps what is not
/// allowed in [`breaches`](Self::breaches).
///
/// A connection: `Established` or `ConnectFailed` comes first, then messages, none while it is lost, `Closed`
/// last, when all its messages have had their outcome and their buffers. A message that was taken:
/// one outcome, which fits what it is, and its buffers once. One that is refused: nothing. A received
/// message: once, and its row is nobody else's until its user gives it back.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    lines: Vec<Option<Line>>,
    tasks: Vec<Option<Task>>,
    guests: Vec<Option<(SessionId, Guest)>>,
    command: Command,
    stopping: bool,
    stopped: bool,
    breaches: Vec<(Check, String)>,
}

fn put<T>(rows: &mut Vec<Option<T>>, index: usize, row: T) {
    if rows.len() <= index {
        rows.resize_with(index + 1, || None);
    }
    rows[index] = Some(row);
}

impl Watch {
    /// More breaches than this are not kept.
    const BREACHES_MAX: usize = 20;

    /// Of an endpoint on which nothing has happened.
    pub fn new() -> Self {
        Self::default()
    }
    /// What was not allowed, oldest first.
    pub fn breaches(&self) -> &[(Check, String)] {
        &self.breaches
    }

    #[cold]
    fn breach(&mut self, check: Check, text: String) {
        if self.breaches.len() < Self::BREACHES_MAX {
            self.breaches.push((check, text));
        }
    }

    fn line(&mut self, id: ConnectionId) -> Option<&mut Line> {
        let row = self.lines.get_mut(id.index())?.as_mut();
        row.filter(|row| row.id == id)
    }
    fn task(&mut self, id: TaskId) -> Option<&mut Task> {
        let row = self.tasks.get_mut(id.index())?.as_mut();
        row.filter(|row| row.id == id)
    }

    /// Keeps of an input what its result is to be judged by.
    pub fn saw(&mut self, input: &Input<'_>) {
        self.command = match *input {
            Input::Connect { ref options, .. } | Input::Join { ref options, .. } => Command::Open {
                user: options.user,
                again: options.reconnect.is_some(),
            },
            Input::Accept {
                user,
                session,
                portals,
                ..
            } => Command::Accept {
                user,
                session,
                silent: !portals.is_empty(),
            },
            Input::Reject { session, .. } | Input::Redirect { session, .. } => {
                Command::Turn(session)
            }
            Input::Send {
                connection,
                ref message,
                ..
            } => Command::Send {
                connection,
                user: message.user,
                role: Role::Request,
            },
            Input::SendOneWay {
                connection,
                ref message,
                ref options,
            } => Command::Send {
                connection,
                user: message.user,
                role: Role::OneWay {
                    receipt: options.receipt,
                },
            },
            Input::Read {
                connection, user, ..
            }
            | Input::Write {
                connection, user, ..
            } => Command::Send {
                connection,
                user,
                role: Role::Direct,
            },
            Input::Respond {
                request,
                ref message,
            } => Command::Respond {
                task: request,
                user: message.user,
            },
            Input::Provide { task, .. } => Command::Provide(task),
            Input::Refuse { task, .. } => Command::Refuse(task),
            Input::Release { task } => Command::Release(task),
            Input::Close { connection, .. } | Input::Abort { connection, .. } => {
                Command::End(connection)
            }
            Input::Stop { .. } => Command::Stop,
            _ => Command::Other,
        };
    }

    /// Judges what came of the input before.
    pub fn came(&mut self, applied: &Applied) {
        match (core::mem::take(&mut self.command), applied) {
            (_, Applied::Event(Some(event))) => self.heard(event),
            (Command::Open { user, again }, &Applied::Connection(Ok(id))) => {
                self.asked_for(id);
                self.open(id, user, again, None);
            }
            (
                Command::Accept {
                    user,
                    session,
                    silent,
                },
                &Applied::Connection(Ok(id)),
            ) => {
                self.answered(session);
                if !silent {
                    self.asked_for(id);
                    self.open(id, user, false, Some(session));
                }
            }
            (Command::Turn(session), Applied::Command(Ok(()))) => self.answered(session),
            (
                Command::Send {
                    connection,
                    user,
                    role,
                },
                &Applied::Task(Ok(id)),
            ) => self.sent(connection, id, user, role),
            (Command::Stop, _) => self.stopping = true,
            (Command::End(id), Applied::Command(Ok(()))) => {
                if let Some(line) = self.line(id) {
                    line.ends = true;
                }
            }
            (command, Applied::Command(Ok(()))) => self.done(command),
            _ => {}
        }
    }

    fn answered(&mut self, session: SessionId) {
        let row = self
            .guests
            .get_mut(session.index())
            .and_then(Option::as_mut);
        match row {
            Some((id, guest)) if *id == session && *guest == Guest::Asks => {
                *guest = Guest::Answered;
            }
            _ => self.breach(Check::Sense, format!("{session:?} took an answer unasked")),
        }
    }

    /// A connection that the user wanted. One that comes by HELLO may have come before the user said
    /// stop, and be heard of afterwards.
    fn asked_for(&mut self, id: ConnectionId) {
        if self.stopping {
            self.breach(Check::Sense, format!("{id:?} while the endpoint stops"));
        }
    }

    fn open(&mut self, id: ConnectionId, user: u64, again: bool, session: Option<SessionId>) {
        let before = self.lines.get(id.index()).copied().flatten();
        if let Some(before) = before.filter(|line| line.stage != Stage::Over) {
            self.breach(Check::Sense, format!("{id:?} has the place of {before:?}"));
        }
        let line = Line {
            id,
            user,
            stage: Stage::Opening,
            session,
            again,
            ends: false,
            due: 0,
            lent: 0,
        };
        put(&mut self.lines, id.index(), line);
    }

    fn sent(&mut self, connection: ConnectionId, id: TaskId, user: u64, role: Role) {
        let open = |line: &&mut Line| !matches!(line.stage, Stage::Over | Stage::Failed);
        let Some(line) = self.line(connection).filter(open) else {
            let text = format!("{connection:?} took {id:?} when it was over");
            return self.breach(Check::ExactlyOneEnd, text);
        };
        line.due += 1;
        self.begin(Task {
            id,
            line: connection.index(),
            role,
            step: Step::Due,
            user,
            receipted: false,
            provided: false,
        });
    }

    /// A row begins a new life.
    fn begin(&mut self, task: Task) {
        let before = self.tasks.get(task.id.index()).copied().flatten();
        // A payload for which nobody gave memory may be gone without a word.
        let waits = |task: &Task| task.step == Step::Waiting && !task.provided;
        let lives = |task: &Task| task.step != Step::Over && !waits(task);
        if let Some(before) = before.filter(lives) {
            let text = format!("{:?} has the row of {before:?}", task.id);
            self.breach(Check::Conservation, text);
        }
        put(&mut self.tasks, task.id.index(), task);
    }

    /// A command about a message was taken.
    fn done(&mut self, command: Command) {
        match command {
            Command::Respond { task: id, user } => {
                let held =
                    |task: &&mut Task| task.role == Role::Received && task.step == Step::Held;
                let Some(task) = self.task(id).filter(held) else {
                    let text = format!("{id:?} took an answer, and is not in hand");
                    return self.breach(Check::Sense, text);
                };
                (task.role, task.step, task.user) = (Role::Answer, Step::Due, user);
                let line = task.line;
                if let Some(Some(line)) = self.lines.get_mut(line) {
                    line.due += 1;
                }
            }
            Command::Provide(id) => {
                if let Some(task) = self.task(id) {
                    task.provided = true;
                }
            }
            Command::Refuse(id) => {
                if let Some(task) = self.task(id)
                    && task.role == Role::Received
                {
                    task.step = Step::Over;
                }
            }
            Command::Release(id) => {
                // The buffers of an answered request may be out still.
                if let Some(task) = self.task(id)
                    && task.step == Step::Held
                {
                    task.step = if task.provided {
                        Step::Lent
                    } else {
                        Step::Over
                    };
                }
            }
            _ => {}
        }
    }

    fn heard(&mut self, event: &Event) {
        let region = matches!(
            event,
            Event::RegionReady { .. } | Event::RegionFailed { .. } | Event::RegionRevoked { .. }
        );
        if self.stopped && !region {
            let text = format!("{event:?} after the endpoint's last event");
            self.breach(Check::ExactlyOneEnd, text);
        }
        match *event {
            Event::SessionRequest { session, .. } => self.asks(session),
            Event::Portals {
                connection, user, ..
            } => self.moves(
                event,
                connection,
                user,
                &[Stage::Opening, Stage::Lost],
                None,
            ),
            Event::Established {
                connection,
                session,
                user,
                message,
                ..
            } => self.established(event, connection, session, user, message),
            Event::ConnectFailed {
                connection,
                user,
                message,
                ..
            } => {
                let failed = Some(Stage::Failed);
                self.moves(event, connection, user, &[Stage::Opening], failed);
                self.holds_private(connection, message);
            }
            Event::Reconnecting { .. } | Event::Reconnected { .. } => self.anew(event),
            Event::Writable {
                connection, user, ..
            } => {
                let open = [Stage::Opening, Stage::Up, Stage::Lost, Stage::Failed];
                self.moves(event, connection, user, &open, None);
            }
            Event::Closed {
                connection, user, ..
            } => self.closed(event, connection, user),
            Event::SessionClosed { session, .. } => self.session_closed(session),
            Event::Stopped { .. } => self.stop(),
            _ => self.message(event),
        }
    }

    /// A connection is lost, or there again.
    fn anew(&mut self, event: &Event) {
        match *event {
            Event::Reconnecting {
                connection, user, ..
            } => {
                self.moves(event, connection, user, &[Stage::Up], Some(Stage::Lost));
                if self.line(connection).is_some_and(|line| !line.again) {
                    let text = format!("{connection:?} is made anew unasked");
                    self.breach(Check::Sense, text);
                }
            }
            Event::Reconnected {
                connection,
                session,
                user,
                message,
                ..
            } => {
                self.moves(event, connection, user, &[Stage::Lost], Some(Stage::Up));
                if let Some(line) = self.line(connection) {
                    line.session = Some(session);
                }
                self.holds_private(connection, message);
            }
            _ => {}
        }
    }

    fn asks(&mut self, session: SessionId) {
        let before = self.guests.get(session.index()).copied().flatten();
        if before.is_some_and(|(id, _)| id == session) || self.stopping {
            self.breach(Check::Sense, format!("{session:?} asks, and may not"));
        }
        put(&mut self.guests, session.index(), (session, Guest::Asks));
    }

    /// An event of a connection that may come in these stages, and what follows.
    fn moves(
        &mut self,
        event: &Event,
        id: ConnectionId,
        user: u64,
        from: &[Stage],
        to: Option<Stage>,
    ) {
        let seen = match self.line(id) {
            Some(line) if line.user == user && from.contains(&line.stage) => {
                line.stage = to.unwrap_or(line.stage);
                return;
            }
            Some(line) => Some(*line),
            None => None,
        };
        let text = format!("{event:?} of a connection that is {seen:?}");
        self.breach(Check::ExactlyOneEnd, text);
    }

    fn established(
        &mut self,
        event: &Event,
        id: ConnectionId,
        session: SessionId,
        user: u64,
        message: Option<TaskId>,
    ) {
        // One that comes by HELLO is new to its user.
        let fresh = match self.lines.get(id.index()).copied().flatten() {
            Some(line) => line.stage == Stage::Over && line.id != id,
            None => true,
        };
        if fresh {
            self.open(id, user, false, Some(session));
        }
        self.moves(event, id, user, &[Stage::Opening], Some(Stage::Up));
        if let Some(line) = self.line(id) {
            line.session = Some(session);
        }
        self.holds_private(id, message);
    }

    /// Private data lies in a received message of its own.
    fn holds_private(&mut self, connection: ConnectionId, message: Option<TaskId>) {
        if let Some(id) = message {
            self.received(id, connection, Step::Held);
        }
    }

    fn received(&mut self, id: TaskId, connection: ConnectionId, step: Step) {
        self.begin(Task {
            id,
            line: connection.index(),
            role: Role::Received,
            step,
            user: 0,
            receipted: false,
            provided: false,
        });
    }

    /// A message comes: while the connection is up, or to a client that closed or stopped while its
    /// server said yes, be it to a connection that was lost.
    fn comes(&mut self, event: &Event, id: ConnectionId, user: u64) {
        let stages = [Stage::Up, Stage::Failed, Stage::Lost];
        let ends = self.stopping || self.line(id).is_some_and(|line| line.ends);
        let stages = &stages[..if ends { 3 } else { 2 }];
        self.moves(event, id, user, stages, None);
    }

    fn closed(&mut self, event: &Event, id: ConnectionId, user: u64) {
        let open = [Stage::Opening, Stage::Up, Stage::Lost, Stage::Failed];
        self.moves(event, id, user, &open, Some(Stage::Over));
        let Some(line) = self.line(id).copied() else {
            return;
        };
        if line.due > 0 {
            let text = format!("{id:?} closed with {} messages without outcome", line.due);
            self.breach(Check::ExactlyOneOutcome, text);
        }
        if line.lent > 0 {
            let text = format!("{id:?} closed, and {} messages have buffers", line.lent);
            self.breach(Check::Buffers, text);
        }
    }

    fn session_closed(&mut self, session: SessionId) {
        let mut lines = self.lines.iter().flatten();
        // Each life of a connection that is made anew has its session.
        let open = |line: &&Line| {
            line.session == Some(session) && line.stage != Stage::Over && !line.again
        };
        if let Some(line) = lines.find(open).copied() {
            let text = format!("{session:?} closed with {line:?}");
            self.breach(Check::ExactlyOneEnd, text);
        }
    }

    fn stop(&mut self) {
        let open = self.lines.iter().flatten().find(|l| l.stage != Stage::Over);
        if let Some(line) = open.copied() {
            let text = format!("the endpoint's last event comes before that of {line:?}");
            self.breach(Check::ExactlyOneEnd, text);
        }
        if !self.stopping {
            self.breach(Check::Sense, "it stopped unasked".into());
        }
        self.stopped = true;
    }

    fn message(&mut self, event: &Event) {
        match *event {
            Event::Request {
                connection,
                user,
                task,
                ..
            }
            | Event::OneWay {
                connection,
                user,
                task,
                ..
            } => {
                self.comes(event, connection, user);
                self.arrived(task, connection, Step::Held);
            }
            Event::PayloadWaiting {
                connection,
                user,
                task,
                ..
            } => {
                self.comes(event, connection, user);
                // The answer to an own request may wait, too.
                let own = self.task(task).is_some_and(|t| t.step == Step::Due);
                if !own {
                    self.arrived(task, connection, Step::Waiting);
                }
            }
            Event::CancelAsked {
                connection,
                user,
                task,
            } => {
                self.comes(event, connection, user);
                if self.task(task).is_none_or(|t| t.step != Step::Held) {
                    self.breach(Check::Sense, format!("{event:?}, which is not in hand"));
                }
            }
            Event::Delivered {
                task,
                buffers_returned,
                ..
            } => self.delivered(event, task, buffers_returned),
            Event::BuffersReturned { task, .. } => self.returned(event, task),
            _ => self.outcome(event),
        }
    }

    fn outcome(&mut self, event: &Event) {
        match *event {
            Event::Response {
                task,
                user,
                buffers_returned,
                ..
            } => {
                self.ended(event, task, user, buffers_returned, &[Role::Request]);
            }
            Event::Sent {
                task,
                user,
                buffers_returned,
            } => {
                let may = [Role::OneWay { receipt: false }, Role::Answer, Role::Direct];
                self.ended(event, task, user, buffers_returned, &may);
            }
            Event::Failed {
                task,
                user,
                buffers_returned,
                ..
            }
            | Event::TimedOut {
                task,
                user,
                buffers_returned,
            }
            | Event::Cancelled {
                task,
                user,
                buffers_returned,
            } => self.ended(event, task, user, buffers_returned, &[]),
            _ => {}
        }
    }

    /// A message came, or its payload waits.
    fn arrived(&mut self, id: TaskId, connection: ConnectionId, step: Step) {
        match self.task(id) {
            Some(task) if task.step == Step::Waiting && step == Step::Held => {
                task.step = Step::Held;
                task.provided = false;
            }
            Some(task) => {
                let text = format!("{id:?} came twice: {task:?}");
                self.breach(Check::Delivery, text);
            }
            None => self.received(id, connection, step),
        }
    }

    /// A receipt: the outcome of a one-way, once before the outcome of a request.
    fn delivered(&mut self, event: &Event, id: TaskId, returned: bool) {
        match self.task(id).copied() {
            Some(task) if matches!(task.role, Role::OneWay { .. }) => {
                self.ended(event, id, task.user, returned, &[]);
            }
            Some(task)
                if task.role == Role::Request && task.step == Step::Due && !task.receipted =>
            {
                if let Some(task) = self.task(id) {
                    task.receipted = true;
                }
            }
            task => {
                let text = format!("{event:?}: no receipt is due of {task:?}");
                self.breach(Check::ExactlyOneOutcome, text);
            }
        }
    }

    /// An outcome; good ones are for some roles only.
    fn ended(&mut self, event: &Event, id: TaskId, user: u64, returned: bool, may: &[Role]) {
        let seen = match self.task(id) {
            Some(task)
                if task.step == Step::Due
                    && task.user == user
                    && (may.is_empty() || may.contains(&task.role)) =>
            {
                // An answer is in its user's hands; what else is in its row is over.
                let response = matches!(event, Event::Response { .. });
                task.step = match (returned, response) {
                    (true, false) => Step::Over,
                    (_, true) => Step::Held,
                    (false, false) => Step::Lent,
                };
                let (line, lent) = (task.line, !returned);
                task.provided = response && lent;
                if let Some(Some(line)) = self.lines.get_mut(line) {
                    line.due -= 1;
                    line.lent += u32::from(lent);
                    if line.stage == Stage::Over {
                        let text = format!("{event:?} after its connection's last event");
                        self.breach(Check::ExactlyOneEnd, text);
                    }
                }
                return;
            }
            Some(task) => Some(*task),
            None => None,
        };
        let text = format!("{event:?}: no such outcome is due of {seen:?}");
        self.breach(Check::ExactlyOneOutcome, text);
    }

    fn returned(&mut self, event: &Event, id: TaskId) {
        let seen = match self.task(id) {
            // The buffers of a request whose answer is in hand, or of what has only an outcome.
            Some(task) if task.step == Step::Lent || task.step == Step::Held && task.provided => {
                task.provided = false;
                if task.step == Step::Lent {
                    task.step = Step::Over;
                }
                let line = task.line;
                if let Some(Some(line)) = self.lines.get_mut(line) {
                    line.lent = line.lent.saturating_sub(1);
                }
                return;
            }
            // Memory that was given for a payload which will not come.
            Some(task) if task.role == Role::Received && task.provided => {
                task.provided = false;
                task.step = Step::Over;
                return;
            }
            Some(task) => Some(*task),
            None => None,
        };
        let text = format!("{event:?}: no buffers are out of {seen:?}");
        self.breach(Check::Buffers, text);
    }
}

impl Trace for Watch {
    const RECORDS: bool = true;

    fn input(&mut self, input: &Input<'_>) {
        self.saw(input);
    }
    fn output(&mut self, applied: &Applied, _frame: &[u8]) {
        self.came(applied);
    }
}
