//! The end that answers.

use std::net::SocketAddr;
use std::time::Duration;

use xio_proto::driver::BufferId;
use xio_proto::{Event, ListenOptions, Message, Segment, TaskId};
use xio_verbs::{Driver, VerbsDriver};

use super::{COPIED, Outcome, message};

pub(crate) struct Server {
    driver: VerbsDriver,
    at: SocketAddr,
    answer: usize,
    /// What long answers are sent from, all of them at once if need be.
    data: Option<Segment>,
    free: Vec<BufferId>,
    held: Vec<(TaskId, BufferId)>,
    /// Requests that found no room for their answer.
    due: Vec<TaskId>,
    is_over: bool,
}

impl Server {
    pub(crate) fn new(mut driver: VerbsDriver, at: SocketAddr, answer: usize) -> Outcome<Self> {
        let options = ListenOptions {
            user: 0,
            backlog: 8,
        };
        let listener = driver.listen(at, &options)?;
        let at = driver.listening(listener).ok_or("the port is taken")?;
        let mut data = None;
        if answer > COPIED {
            let buffer = driver.allocate(answer)?;
            data = Some(driver.segment(buffer, 0..answer)?);
        }
        println!("listening at {at}");
        Ok(Self {
            driver,
            at,
            answer,
            data,
            free: Vec::new(),
            held: Vec::new(),
            due: Vec::new(),
            is_over: false,
        })
    }

    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Polls, and answers what came.
    pub(crate) fn step(&mut self, timeout: Option<Duration>) -> Outcome<()> {
        self.driver.poll(timeout)?;
        while let Some(event) = self.driver.next_event() {
            self.event(event)?;
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Outcome<()> {
        match event {
            Event::Request { task, .. } => self.answer(task)?,
            Event::SessionRequest { session, .. } => {
                self.driver.accept(session, 0, &[], b"")?;
            }
            Event::PayloadWaiting { task, len, .. } => {
                let buffer = match self.free.pop() {
                    Some(buffer) => buffer,
                    None => self.driver.allocate(len as usize)?,
                };
                let segment = self.driver.segment(buffer, 0..len as usize)?;
                self.driver.provide(task, &[segment])?;
                self.held.push((task, buffer));
            }
            Event::Writable { .. } => {
                for task in std::mem::take(&mut self.due) {
                    self.answer(task)?;
                }
            }
            Event::Closed { .. } => self.is_over = true,
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, task: TaskId) -> Outcome<()> {
        if let Some(at) = self.held.iter().position(|(of, _)| *of == task) {
            self.free.push(self.held.swap_remove(at).1);
        }
        let Ok(slot) = self.driver.reserve_answer_slot(task) else {
            self.due.push(task);
            return Ok(());
        };
        let done = match &self.data {
            None => {
                let len = self.answer;
                let written = self.driver.with_slot(slot, |room| room[..len].fill(7));
                debug_assert!(written.is_some(), "just reserved");
                self.driver.respond(task, &message(slot, len))
            }
            Some(segment) => {
                let message = Message {
                    data: std::slice::from_ref(segment),
                    ..message(slot, 0)
                };
                self.driver.respond(task, &message)
            }
        };
        if done.is_err() {
            self.driver.return_slot(slot)?;
            self.due.push(task);
        }
        Ok(())
    }
}
