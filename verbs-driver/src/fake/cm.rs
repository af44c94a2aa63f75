//! Connections: librdmacm.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr;

use xio_proto::CmKind;

use super::verbs::context;
use super::{IP, Light, World, code, set_errno, status, step, with};
use crate::address;
use crate::sys::{
    ibv_context, ibv_pd, ibv_qp_init_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel,
};

/// An address of the machine that is no device's.
pub(crate) const OTHER: [u8; 4] = [10, 99, 0, 2];

/// Channels and ids.
#[derive(Default)]
pub(super) struct Manager {
    channels: BTreeMap<usize, Channel>,
    ids: BTreeMap<usize, Entry>,
    next_port: u16,
}

struct Channel {
    light: Light,
    events: VecDeque<Pending>,
}

/// An event that was not taken yet.
struct Pending {
    id: usize,
    kind: CmKind,
    status: i32,
    private: Vec<u8>,
    /// The id of the client that asks.
    from: usize,
}

/// What is known of an id.
#[derive(Default)]
struct Entry {
    channel: usize,
    /// Where it listens.
    listens: Option<SocketAddr>,
    /// The id at the other end.
    peer: Option<usize>,
    is_connected: bool,
    /// It was asked and has not answered.
    is_asked: bool,
    /// Events taken and not acknowledged.
    taken: usize,
}

/// An event, and what it points to.
#[repr(C)]
struct Taken {
    event: rdma_cm_event,
    of: usize,
    private: Vec<u8>,
}

/// All zeros.
pub(super) fn zeroed<T>() -> *mut T {
    // SAFETY: structures of C: plain numbers and pointers, for which 0 is a value.
    let raw = Box::into_raw(Box::new(unsafe { core::mem::zeroed::<T>() }));
    // Tables know things by address.
    raw.expose_provenance();
    raw
}

/// Frees what [`zeroed`] made.
pub(super) fn free<T>(at: *mut T) {
    // SAFETY: made by `zeroed`, and unmade only once: the world knows.
    drop(unsafe { Box::from_raw(at) });
}

impl World {
    /// An event for an id.
    pub(super) fn tell(&mut self, id: usize, kind: CmKind, status: i32) {
        self.push(Pending {
            id,
            kind,
            status,
            private: Vec::new(),
            from: 0,
        });
    }

    fn push(&mut self, pending: Pending) {
        let Some(entry) = self.cm.ids.get(&pending.id) else {
            return;
        };
        let channel = self
            .cm
            .channels
            .get_mut(&entry.channel)
            .expect("held by its ids");
        channel.events.push_back(pending);
        channel.light.set(true);
    }

    /// Events that nobody has taken.
    pub(super) fn events(&self, channel: usize) -> usize {
        let channel = self.cm.channels.get(&channel);
        channel.map_or(0, |channel| channel.events.len())
    }

    fn entry(&mut self, id: usize) -> &mut Entry {
        self.cm.ids.get_mut(&id).expect("an id")
    }

    fn new_id(&mut self, channel: usize) -> *mut rdma_cm_id {
        let raw: *mut rdma_cm_id = zeroed();
        self.made("id", raw.addr(), &[channel]);
        let entry = Entry {
            channel,
            ..Entry::default()
        };
        self.cm.ids.insert(raw.addr(), entry);
        raw
    }

    /// Connects or refuses: what the client hears.
    fn answer(&mut self, id: usize, kind: CmKind, private: &[u8]) {
        self.entry(id).is_asked = false;
        if let Some(client) = self.entry(id).peer {
            self.push(Pending {
                id: client,
                kind,
                status: 0,
                private: private.to_vec(),
                from: 0,
            });
        }
    }

    /// Both ends of a connection hear of its end.
    fn hang_up(&mut self, id: usize) {
        let peer = self.entry(id).peer;
        for end in [Some(id), peer].into_iter().flatten() {
            if let Some(entry) = self.cm.ids.get_mut(&end)
                && std::mem::take(&mut entry.is_connected)
            {
                self.tell(end, CmKind::Disconnected, 0);
            }
        }
    }

    /// The device is removed: all ids on it hear of that.
    pub(super) fn remove_device(&mut self) {
        let ids: Vec<usize> = self.cm.ids.keys().copied().collect();
        for id in ids {
            self.tell(id, CmKind::DeviceRemoval, 0);
        }
    }
}

pub(crate) unsafe fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let begun = with(|world| world.begin("rdma_create_event_channel"));
    if status(begun) != 0 {
        return ptr::null_mut();
    }
    let raw: *mut rdma_event_channel = zeroed();
    let light = Light::new();
    // SAFETY: just made.
    unsafe { (*raw).fd = light.0 };
    with(|world| {
        world.made("channel", raw.addr(), &[]);
        let events = VecDeque::new();
        world
            .cm
            .channels
            .insert(raw.addr(), Channel { light, events });
    });
    raw
}

pub(crate) unsafe fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let done = with(|world| {
        let done = world.unmake("rdma_destroy_event_channel", channel.addr());
        done.map(|()| world.cm.channels.remove(&channel.addr()))
    });
    if done.is_ok() {
        free(channel);
    }
}

pub(crate) unsafe fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    mark: *mut c_void,
    _: u32,
) -> i32 {
    let begun = with(|world| world.begin("rdma_create_id"));
    if begun.is_ok() {
        let raw = with(|world| world.new_id(channel.addr()));
        // SAFETY: just made; the caller has a place for it.
        unsafe {
            (*raw).context = mark;
            (*raw).channel = channel;
            *id = raw;
        }
    }
    status(begun)
}

pub(crate) unsafe fn rdma_destroy_id(id: *mut rdma_cm_id) -> i32 {
    let at = id.addr();
    let done = with(|world| {
        let entry = world.entry(at);
        assert!(
            entry.taken == 0,
            "destroying waits for events not acknowledged"
        );
        if entry.is_asked {
            world.answer(at, CmKind::Rejected, &[]);
        }
        world.hang_up(at);
        world.unmake("rdma_destroy_id", at)?;
        let entry = world.cm.ids.remove(&at).expect("an id");
        let channel = world
            .cm
            .channels
            .get_mut(&entry.channel)
            .expect("held by its ids");
        // What it was to hear, nobody does; clients that ask are refused.
        let (gone, rest) = channel.events.drain(..).partition(|event| event.id == at);
        channel.events = rest;
        channel.light.set(!channel.events.is_empty());
        let gone: VecDeque<Pending> = gone;
        for event in gone.into_iter().filter(|event| event.from != 0) {
            world.tell(event.from, CmKind::Rejected, 0);
        }
        Ok(())
    });
    if done.is_ok() {
        // SAFETY: unmade, so its queue pair is too.
        assert!(unsafe { (*id).qp }.is_null(), "its queue pair is left");
        free(id);
    }
    status(done)
}

/// # Safety
/// As of an address of C's.
unsafe fn address_of(raw: *const libc::sockaddr) -> SocketAddr {
    // SAFETY: of the caller, who passes storages.
    address::from_c(unsafe { &*raw.cast::<libc::sockaddr_storage>() }).expect("an address")
}

pub(crate) unsafe fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> i32 {
    // SAFETY: of the caller.
    let mut at = unsafe { address_of(addr) };
    let done = with(|world| {
        world.begin("rdma_bind_addr")?;
        if at.ip() != SocketAddr::from((IP, 0)).ip() && at.ip() != SocketAddr::from((OTHER, 0)).ip()
        {
            return Err(libc::EADDRNOTAVAIL);
        }
        if at.port() == 0 {
            world.cm.next_port += 1;
            at.set_port(40_000 + world.cm.next_port);
        }
        Ok(())
    });
    if done.is_ok() {
        // SAFETY: the id is valid.
        unsafe {
            (*id).route.addr.src_addr_union.src_storage = address::to_c(at);
            if at.ip() == SocketAddr::from((IP, 0)).ip() {
                (*id).verbs = context();
            }
        }
    }
    status(done)
}

pub(crate) unsafe fn rdma_set_option(
    _: *mut rdma_cm_id,
    _: i32,
    _: i32,
    _: *mut c_void,
    _: usize,
) -> i32 {
    status(with(|world| world.begin("rdma_set_option")))
}

pub(crate) unsafe fn rdma_listen(id: *mut rdma_cm_id, _: i32) -> i32 {
    // SAFETY: the id is valid.
    let at = unsafe { address::from_c(&(*id).route.addr.src_addr_union.src_storage) };
    status(with(|world| {
        world.begin("rdma_listen")?;
        world.entry(id.addr()).listens = at;
        Ok(())
    }))
}

pub(crate) unsafe fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    _: *mut libc::sockaddr,
    peer: *mut libc::sockaddr,
    _: i32,
) -> i32 {
    let begun = with(|world| world.begin("rdma_resolve_addr"));
    if begun.is_ok() {
        // SAFETY: the id is valid, and the peer an address.
        unsafe {
            (*id).route.addr.dst_addr_union.dst_storage = address::to_c(address_of(peer));
            (*id).route.addr.src_addr_union.src_storage = address::to_c((IP, 39_999).into());
            (*id).verbs = context();
        }
        with(|world| world.tell(id.addr(), CmKind::AddrResolved, 0));
    }
    status(begun)
}

pub(crate) unsafe fn rdma_resolve_route(id: *mut rdma_cm_id, _: i32) -> i32 {
    status(with(|world| {
        world.begin("rdma_resolve_route")?;
        world.tell(id.addr(), CmKind::RouteResolved, 0);
        Ok(())
    }))
}

pub(crate) unsafe fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> i32 {
    let begun = with(|world| world.begin("rdma_create_qp"));
    if begun.is_err() {
        return status(begun);
    }
    // SAFETY: of the caller.
    let made = unsafe { super::verbs::make_queue_pair(pd, attr) };
    // SAFETY: the id is valid.
    status(made.map(|qp| unsafe { (*id).qp = qp }))
}

pub(crate) unsafe fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the id is valid, and has a queue pair.
    unsafe {
        super::ibv_destroy_qp((*id).qp);
        (*id).qp = ptr::null_mut();
    }
}

/// # Safety
/// As of the parameters of a connect or accept.
unsafe fn private_of(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: of the caller: so many bytes are there.
    unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

pub(crate) unsafe fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32 {
    let begun = with(|world| world.begin("rdma_connect"));
    if begun.is_err() {
        return status(begun);
    }
    // SAFETY: id and parameters are valid.
    let (to, private) = unsafe {
        (
            address::from_c(&(*id).route.addr.dst_addr_union.dst_storage),
            private_of((*param).private_data, (*param).private_data_len),
        )
    };
    with(|world| {
        let listener = world.cm.ids.iter().find(|(_, entry)| entry.listens == to);
        match listener.map(|(&at, _)| at) {
            Some(listener) => world.push(Pending {
                id: listener,
                kind: CmKind::ConnectRequest,
                status: 0,
                private,
                from: id.addr(),
            }),
            None => world.tell(id.addr(), CmKind::Rejected, 8),
        }
    });
    0
}

pub(crate) unsafe fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32 {
    // SAFETY: id and parameters are valid.
    let (qp, private) = unsafe {
        (
            (*id).qp,
            private_of((*param).private_data, (*param).private_data_len),
        )
    };
    status(with(|world| {
        world.begin("rdma_accept")?;
        let at = id.addr();
        let Some(client) = world.entry(at).peer else {
            return Err(libc::EINVAL);
        };
        if !world.cm.ids.contains_key(&client) {
            // It gave up meanwhile.
            world.tell(at, CmKind::Disconnected, 0);
            return Ok(());
        }
        // SAFETY: an id, since it is in the table.
        let theirs = unsafe { (*ptr::with_exposed_provenance::<rdma_cm_id>(client)).qp };
        world.join(qp, theirs);
        for end in [at, client] {
            world.entry(end).is_connected = true;
        }
        world.tell(at, CmKind::Established, 0);
        world.answer(at, CmKind::Established, &private);
        Ok(())
    }))
}

pub(crate) unsafe fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> i32 {
    // SAFETY: of the caller.
    let private = unsafe { private_of(data, len) };
    status(with(|world| {
        world.begin("rdma_reject")?;
        world.answer(id.addr(), CmKind::Rejected, &private);
        Ok(())
    }))
}

pub(crate) unsafe fn rdma_disconnect(id: *mut rdma_cm_id) -> i32 {
    // SAFETY: the id is valid.
    let qp = unsafe { (*id).qp };
    status(with(|world| {
        world.begin("rdma_disconnect")?;
        world.fail_queue_pair(qp);
        world.hang_up(id.addr());
        Ok(())
    }))
}

pub(crate) unsafe fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> i32 {
    step("rdma_get_cm_event", channel.addr());
    let pending = with(|world| {
        world.begin("rdma_get_cm_event")?;
        let queue = world
            .cm
            .channels
            .get_mut(&channel.addr())
            .expect("a channel");
        let pending = queue.events.pop_front();
        queue.light.set(!queue.events.is_empty());
        Ok(pending.ok_or_else(|| queue.light.nothing("rdma_get_cm_event")))
    });
    match pending {
        Ok(Ok(pending)) => {
            // SAFETY: the caller has a place for it.
            unsafe { *event = take(channel, pending) };
            0
        }
        Ok(Err(nothing)) => nothing,
        Err(code) => status(Err(code)),
    }
}

/// # Safety
/// The ids that the event is about are valid.
unsafe fn take(channel: *mut rdma_event_channel, pending: Pending) -> *mut rdma_cm_event {
    let mut id = ptr::with_exposed_provenance_mut::<rdma_cm_id>(pending.id);
    let mut listener = ptr::null_mut();
    if pending.kind == CmKind::ConnectRequest {
        listener = id;
        id = with(|world| {
            let id = world.new_id(channel.addr());
            let entry = world.entry(id.addr());
            (entry.peer, entry.is_asked) = (Some(pending.from), true);
            if world.cm.ids.contains_key(&pending.from) {
                world.entry(pending.from).peer = Some(id.addr());
            }
            id
        });
        // SAFETY: the listener is valid, the new id just made.
        unsafe {
            (*id).context = (*listener).context;
            (*id).verbs = context();
            (*id).channel = channel;
            (*id).route.addr.dst_addr_union.dst_storage = address::to_c((IP, 39_999).into());
        }
    }
    with(|world| world.entry(id.addr()).taken += 1);
    // SAFETY: plain numbers and pointers, for which 0 is a value.
    let (mut event, mut param): (rdma_cm_event, rdma_conn_param) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    let private = pending.private;
    if !private.is_empty() {
        param.private_data = private.as_ptr().cast();
        param.private_data_len = private.len() as u8;
    }
    (param.responder_resources, param.initiator_depth) = (16, 16);
    (event.id, event.listen_id) = (id, listener);
    (event.event, event.status) = (pending.kind.number(), pending.status);
    // SAFETY: this form of the union is the one of connections.
    unsafe { ptr::write((&raw mut event.param).cast(), param) };
    let taken = Taken {
        event,
        of: id.addr(),
        private,
    };
    Box::into_raw(Box::new(taken)).cast()
}

pub(crate) unsafe fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> i32 {
    // SAFETY: made by `take`, and acknowledged once.
    let taken = unsafe { Box::from_raw(event.cast::<Taken>()) };
    code(with(|world| {
        let entry = world
            .cm
            .ids
            .get_mut(&taken.of)
            .expect("acknowledged before it is destroyed");
        entry.taken -= 1;
        Ok(())
    }))
}

pub(crate) unsafe fn rdma_get_devices(count: *mut i32) -> *mut *mut ibv_context {
    if let Err(code) = with(|world| world.begin("rdma_get_devices")) {
        set_errno(code);
        return ptr::null_mut();
    }
    let list = Box::into_raw(Box::new([context(), ptr::null_mut()]));
    with(|world| world.made("list", list.addr(), &[]));
    // SAFETY: the caller has a place for it.
    unsafe { *count = 1 };
    list.cast()
}

pub(crate) unsafe fn rdma_free_devices(list: *mut *mut ibv_context) {
    if with(|world| world.unmake("rdma_free_devices", list.addr())).is_ok() {
        free(list.cast::<[*mut ibv_context; 2]>());
    }
}
