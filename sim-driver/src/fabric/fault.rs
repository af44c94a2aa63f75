//! What goes wrong from outside: links, devices, peers.

use xio_proto::{CmKind, WorkStatus};

use super::cm::CmState;
use super::device::{NicState, Notice, NoticeKind};
use super::queue_pair::QpState;
use super::{Fabric, NicId};
use crate::env::Env;
use crate::errno;
use crate::trace::{Act, Object};

impl Fabric {
    fn fault(&self, env: &mut Env, nic: NicId, act: Act, value: u64) {
        let endpoint = self.nics[nic.0 as usize].endpoint;
        env.record(endpoint, Object::Nic(nic.0), act, value, 0);
    }

    fn on_nic(&self, nic: NicId) -> Vec<usize> {
        let there = |&index: &usize| self.entries[index].live && self.entries[index].nic == nic.0;
        (0..self.entries.len()).filter(there).collect()
    }

    /// Nothing gets through to or from the device for a time.
    pub fn cut_link(&mut self, env: &mut Env, nic: NicId, for_ns: u64) {
        self.fault(env, nic, Act::LinkDown, for_ns);
        let until = env.now() + for_ns;
        self.nics[nic.0 as usize].link_up_at = self.nics[nic.0 as usize].link_up_at.max(until);
        // Retries may run out, and a connection that ends can leave the peer without receives.
        if for_ns > self.config.retry_timeout {
            for index in self.on_nic(nic) {
                self.taint(index);
            }
        }
    }

    /// The link is up from now on.
    pub fn heal_link(&mut self, env: &mut Env, nic: NicId) {
        self.fault(env, nic, Act::LinkUp, 0);
        self.nics[nic.0 as usize].link_up_at = 0;
    }

    /// Every queue pair of the device stands still for a time, each for another one.
    pub fn stall(&mut self, env: &mut Env, nic: NicId, most_ns: u64) {
        self.fault(env, nic, Act::Stalled, most_ns);
        for index in self.on_nic(nic) {
            let until = env.now() + env.rng.below(most_ns);
            let qp = &mut self.entries[index].qp;
            qp.stalled_until = qp.stalled_until.max(until);
        }
    }

    /// The device goes away: everything on it fails and its owner is told.
    pub fn remove_device(&mut self, env: &mut Env, nic: NicId) {
        self.fault(env, nic, Act::Removed, 0);
        for index in self.on_nic(nic) {
            self.taint(index);
            self.fail(env, index, WorkStatus::Flushed);
            let cm = &mut self.entries[index].cm;
            if !matches!(cm, CmState::Idle) {
                *cm = CmState::Over;
            }
            self.give(env, index, 0, CmKind::DeviceRemoval, 0);
        }
        for listener in self
            .listeners
            .iter_mut()
            .filter(|l| l.live && l.nic == nic.0)
        {
            listener.live = false;
            let notice = Notice {
                id: None,
                cookie: listener.cookie,
                kind: NoticeKind::Cm(CmKind::DeviceRemoval),
                status: 0,
                local: None,
                peer: None,
                private: Vec::new(),
            };
            let place = self.notices.put((nic.0, notice));
            let event = super::FabricEvent::CmNotice(place);
            env.queue.push_after(0, crate::queue::Event::Fabric(event));
        }
        self.nics[nic.0 as usize].state = NicState::Removed;
    }

    /// The device is back, with nothing on it that was there before.
    pub fn restore_device(&mut self, env: &mut Env, nic: NicId) {
        self.fault(env, nic, Act::Restored, 0);
        self.nics[nic.0 as usize].state = NicState::Up;
        self.nics[nic.0 as usize].link_up_at = 0;
    }

    /// The device's owner is gone without a trace. Nobody is told.
    pub fn kill(&mut self, env: &mut Env, nic: NicId) {
        self.fault(env, nic, Act::Died, 0);
        self.nics[nic.0 as usize].state = NicState::Dead;
        for index in self.on_nic(nic) {
            self.taint(index);
            self.forget(env, index);
        }
        for listener in self.listeners.iter_mut().filter(|l| l.nic == nic.0) {
            listener.live = false;
        }
        self.clear_nic(nic.0 as usize);
    }

    /// The address moved: every connected id hears of it.
    pub fn change_address(&mut self, env: &mut Env, nic: NicId) {
        self.fault(env, nic, Act::AddressChanged, 0);
        for index in self.on_nic(nic) {
            self.taint(index);
            let after = env.rng.spread(1, 1_000_000);
            self.give(env, index, after, CmKind::AddrChange, 0);
        }
    }

    /// One queue pair of the device fails by itself. False when there is none.
    pub fn fail_queue_pair(&mut self, env: &mut Env, nic: NicId) -> bool {
        let connected: Vec<_> = self
            .on_nic(nic)
            .into_iter()
            .filter(|&index| self.entries[index].qp.state == QpState::ReadyToSend)
            .collect();
        if connected.is_empty() {
            return false;
        }
        let index = env.rng.pick(&connected);
        self.taint(index);
        let notice = Notice {
            id: Some(self.id(index)),
            cookie: self.entries[index].cookie,
            kind: NoticeKind::QueuePairFatal,
            status: errno::EIO,
            local: None,
            peer: None,
            private: Vec::new(),
        };
        self.notice_after(env, nic.0, 0, notice);
        self.fail(env, index, WorkStatus::Flushed);
        true
    }
}
