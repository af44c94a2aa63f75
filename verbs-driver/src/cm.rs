//! The communication manager: event channels and connection ids, as safe values.
//!
//! Every event is copied and acknowledged as soon as it is taken, so that destroying an id never
//! waits. An id lives as long as its [`Id`], and no event of it is reported after that.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use xio_proto::{CmKind, ConnectParams, PrivateData};

use crate::address;
use crate::device::{Completions, Domain};
use crate::error::Error;
use crate::fd;
use crate::options::QueueSizes;
use crate::owner::Owner;
use crate::shared::SharedQueue;
use crate::sys;

/// Bytes of private data that an event may bring.
const PRIVATE_MAX: usize = 256;

/// Where events of ids come out.
#[derive(Debug)]
pub(crate) struct Channel {
    raw: NonNull<sys::rdma_event_channel>,
    owner: Owner,
}

// SAFETY: a channel is a file descriptor; librdmacm locks what it shares between threads.
unsafe impl Send for Channel {}
// SAFETY: as above; taking events needs no exclusive access.
unsafe impl Sync for Channel {}

impl Channel {
    /// A channel that never blocks.
    ///
    /// # Errors
    /// `NoDevice` where there is no RDMA at all.
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: no arguments; null or a channel.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::from_open("rdma_create_event_channel", sys::errno()));
        };
        let channel = Self {
            raw,
            owner: Owner::me(),
        };
        fd::set_nonblocking(channel.as_raw_fd()).map_err(|code| Error::call("fcntl", code))?;
        Ok(channel)
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// The channel is of no use any more.
    pub(crate) fn next(self: &Arc<Self>) -> Result<Option<Report>, Error> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open; the event is written before it returns 0.
        let status = unsafe { sys::rdma_get_cm_event(self.raw.as_ptr(), &raw mut event) };
        if status != 0 {
            return match sys::errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                code => Err(Error::call("rdma_get_cm_event", code)),
            };
        }
        // SAFETY: the event is valid until it is acknowledged, and so is its id: either an `Id` of
        // ours, which was not destroyed, or a new one that is ours from here on.
        let report = unsafe { Report::copy(self, event) };
        // SAFETY: once, and nothing points into it any more.
        unsafe { sys::rdma_ack_cm_event(event) };
        Ok(Some(report))
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is open.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.owner.is_me() {
            // SAFETY: the last use; ids hold the channel, so none is left.
            unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
        }
    }
}

/// READs that may be outstanding, as a connect request has them from the receiver's view.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadDepths {
    /// Of the peer's, answered by this side.
    pub(crate) answered: u8,
    /// Of this side's.
    pub(crate) issued: u8,
}

/// An event, copied.
#[derive(Debug)]
pub(crate) struct Report {
    /// What happened.
    pub(crate) kind: CmKind,
    /// 0, or why not.
    pub(crate) status: i32,
    /// What the id was marked with; of a connect request, its listener.
    pub(crate) cookie: u64,
    /// The id that a connect request comes with.
    pub(crate) request: Option<Id>,
    /// What the peer asks for.
    pub(crate) reads: ReadDepths,
    /// This side's address.
    pub(crate) local: Option<SocketAddr>,
    /// The peer's address.
    pub(crate) peer: Option<SocketAddr>,
    private: [u8; PRIVATE_MAX],
    private_len: u8,
}

impl Report {
    /// # Safety
    /// The event was taken and not acknowledged; its id is valid.
    unsafe fn copy(channel: &Arc<Channel>, event: *const sys::rdma_cm_event) -> Self {
        // SAFETY: of the caller, for all of these.
        let (raw, number, status, param) = unsafe {
            (
                (*event).id,
                (*event).event,
                (*event).status,
                // Connections have this form of the union, and we make no other ids.
                ptr::read(&raw const (*event).param.conn),
            )
        };
        let kind = CmKind::from_number(number);
        let mut private = [0; PRIVATE_MAX];
        // Other kinds have no parameters, or leave them as they were.
        let has_private = matches!(
            kind,
            CmKind::ConnectRequest
                | CmKind::ConnectResponse
                | CmKind::Established
                | CmKind::Rejected
        ) && !param.private_data.is_null();
        let private_len = if has_private {
            param.private_data_len
        } else {
            0
        };
        if private_len > 0 {
            // SAFETY: so many bytes are there until the event is acknowledged.
            unsafe {
                ptr::copy_nonoverlapping(
                    param.private_data.cast::<u8>(),
                    private.as_mut_ptr(),
                    usize::from(private_len),
                );
            }
        }
        // SAFETY: of the caller; a request's id has the mark of its listener.
        let (cookie, local, peer) = unsafe { ((*raw).context as u64, local_of(raw), peer_of(raw)) };
        let request = (kind == CmKind::ConnectRequest)
            .then(|| NonNull::new(raw))
            .flatten()
            .map(|raw| Id {
                raw,
                channel: Arc::clone(channel),
                queues: None,
            });
        Self {
            kind,
            status,
            cookie,
            request,
            reads: ReadDepths {
                answered: param.responder_resources,
                issued: param.initiator_depth,
            },
            local,
            peer,
            private,
            private_len,
        }
    }

    /// The peer's private data.
    pub(crate) fn private(&self) -> &[u8] {
        &self.private[..usize::from(self.private_len)]
    }
}

/// # Safety
/// The id is valid.
unsafe fn local_of(id: *const sys::rdma_cm_id) -> Option<SocketAddr> {
    // SAFETY: of the caller; the union holds an address of any family, or zeros.
    address::from_c(unsafe { &(*id).route.addr.src_addr_union.src_storage })
}

/// # Safety
/// The id is valid.
unsafe fn peer_of(id: *const sys::rdma_cm_id) -> Option<SocketAddr> {
    // SAFETY: as in `local_of`.
    address::from_c(unsafe { &(*id).route.addr.dst_addr_union.dst_storage })
}

/// A connection id, with the queue pair on it once that is made. Dropping it destroys both.
#[derive(Debug)]
pub(crate) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<Channel>,
    /// What the queue pair uses, if there is one.
    queues: Option<Queues>,
}

/// What queue pairs use.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// The receive queue, if they share one.
    pub(crate) shared: Option<Arc<SharedQueue>>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) domain: Arc<Domain>,
}

// SAFETY: ids have no thread of their own, and librdmacm locks what it shares between threads.
unsafe impl Send for Id {}

impl Id {
    /// An id whose events come out of the channel.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(channel: &Arc<Channel>, cookie: u64) -> Result<Self, i32> {
        let mut raw = ptr::null_mut();
        let port_space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is open; the context is a number that is never followed.
        let status = unsafe {
            sys::rdma_create_id(
                channel.raw.as_ptr(),
                &raw mut raw,
                ptr::without_provenance_mut(cookie as usize),
                port_space,
            )
        };
        sys::check(status)?;
        Ok(Self {
            raw: NonNull::new(raw).ok_or(libc::EIO)?,
            channel: Arc::clone(channel),
            queues: None,
        })
    }

    /// Marks the id: its events bring the mark.
    pub(crate) fn set_cookie(&mut self, cookie: u64) {
        // SAFETY: the id is valid; librdmacm itself never looks at it.
        unsafe { (*self.raw.as_ptr()).context = ptr::without_provenance_mut(cookie as usize) };
    }

    /// The device that the id is bound to; null before that.
    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: the id is valid.
        unsafe { (*self.raw.as_ptr()).verbs }
    }

    /// Its own address, once it is bound.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the id is valid.
        unsafe { local_of(self.raw.as_ptr()) }
    }

    /// The number of its queue pair; 0 without one.
    pub(crate) fn queue_pair_number(&self) -> u32 {
        let raw = self.queue_pair();
        // SAFETY: a queue pair of ours, if it is not null.
        unsafe { raw.as_ref() }.map_or(0, |qp| qp.qp_num)
    }

    /// Its queue pair; null without one.
    pub(crate) fn queue_pair(&self) -> *mut sys::ibv_qp {
        // SAFETY: the id is valid.
        unsafe { (*self.raw.as_ptr()).qp }
    }

    /// Binds to an address of this machine.
    pub(crate) fn bind(&mut self, address: SocketAddr) -> Result<(), i32> {
        let mut storage = address::to_c(address);
        // SAFETY: the id is valid, the address is one.
        sys::check(unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), (&raw mut storage).cast()) })
    }

    /// Sets an option of the id to 1.
    fn enable(&mut self, option: i32) -> Result<(), i32> {
        let mut on = 1_i32;
        // SAFETY: the id is valid; these options are numbers of four bytes.
        sys::check(unsafe {
            sys::rdma_set_option(
                self.raw.as_ptr(),
                sys::option::ID,
                option,
                (&raw mut on).cast(),
                size_of::<i32>(),
            )
        })
    }

    /// Binds and listens.
    pub(crate) fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(), i32> {
        self.enable(sys::option::REUSE_ADDRESS)?;
        if address.is_ipv6() {
            self.enable(sys::option::FAMILY_ONLY)?;
        }
        self.bind(address)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the id is valid.
        sys::check(unsafe { sys::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    /// Finds the device for a peer's address.
    pub(crate) fn resolve_address(
        &mut self,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        timeout_ms: u32,
    ) -> Result<(), i32> {
        let mut peer = address::to_c(peer);
        let mut local = local.map(address::to_c);
        let source = local
            .as_mut()
            .map_or(ptr::null_mut(), |local| &raw mut *local);
        // SAFETY: the id is valid, both are addresses, the first may be null.
        sys::check(unsafe {
            sys::rdma_resolve_addr(
                self.raw.as_ptr(),
                source.cast(),
                (&raw mut peer).cast(),
                timeout(timeout_ms),
            )
        })
    }

    /// Finds the way to the peer.
    pub(crate) fn resolve_route(&mut self, timeout_ms: u32) -> Result<(), i32> {
        // SAFETY: the id is valid.
        sys::check(unsafe { sys::rdma_resolve_route(self.raw.as_ptr(), timeout(timeout_ms)) })
    }

    /// Makes the queue pair.
    pub(crate) fn create_queue_pair(
        &mut self,
        queues: Queues,
        sizes: &QueueSizes,
    ) -> Result<(), i32> {
        if self.context() != queues.domain.context() || self.queues.is_some() {
            return Err(libc::EXDEV);
        }
        let shared = queues.shared.as_deref();
        let mut attr = queues.completions.queue_pair_attributes(shared, sizes);
        // SAFETY: id, domain and queues are valid and of one device; the queue pair is destroyed
        // before them, as this holds them.
        sys::check(unsafe {
            sys::rdma_create_qp(self.raw.as_ptr(), queues.domain.as_ptr(), &raw mut attr)
        })?;
        self.queues = Some(queues);
        Ok(())
    }

    /// Asks the peer to connect.
    pub(crate) fn connect(&mut self, params: &ConnectParams, reads: ReadDepths) -> Result<(), i32> {
        let mut raw = connect_parameters(params, reads);
        // SAFETY: the id is valid, the parameters live as long as the call.
        sys::check(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Takes the peer's request.
    pub(crate) fn accept(&mut self, params: &ConnectParams, reads: ReadDepths) -> Result<(), i32> {
        let mut raw = connect_parameters(params, reads);
        // SAFETY: as in `connect`.
        sys::check(unsafe { sys::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Refuses the peer's request.
    pub(crate) fn reject(&mut self, private: &PrivateData) -> Result<(), i32> {
        // More than 148 bytes do not fit into a refusal.
        let bytes = &private.as_slice()[..private.as_slice().len().min(148)];
        // SAFETY: the id is valid, so many bytes are there.
        sys::check(unsafe {
            sys::rdma_reject(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len() as u8)
        })
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&mut self) -> Result<(), i32> {
        // SAFETY: the id is valid.
        sys::check(unsafe { sys::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// Moves the queue pair to the error state: all that is posted comes back.
    pub(crate) fn fail_queue_pair(&mut self) -> Result<(), i32> {
        let qp = self.queue_pair();
        if qp.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: plain numbers, for which 0 is a value.
        let mut attr: sys::ibv_qp_attr = unsafe { core::mem::zeroed() };
        attr.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
        // SAFETY: a queue pair of ours; the mask names the one field that is set.
        match unsafe { sys::ibv_modify_qp(qp, &raw mut attr, mask as i32) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.channel.owner.is_me() {
            return;
        }
        if self.queues.is_some() {
            // SAFETY: made by `create_queue_pair`, and destroyed only here.
            unsafe { sys::rdma_destroy_qp(self.raw.as_ptr()) };
        }
        // SAFETY: the last use. Its events were all acknowledged, so it does not wait.
        unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        // The channel, which `self` holds, goes after it.
        let _ = &self.channel;
    }
}

fn timeout(ms: u32) -> i32 {
    i32::try_from(ms).unwrap_or(i32::MAX)
}

fn connect_parameters(params: &ConnectParams, reads: ReadDepths) -> sys::rdma_conn_param {
    let private = params.private.as_slice();
    sys::rdma_conn_param {
        private_data: if private.is_empty() {
            ptr::null()
        } else {
            private.as_ptr().cast()
        },
        private_data_len: private.len() as u8,
        responder_resources: reads.answered,
        initiator_depth: reads.issued,
        flow_control: 0,
        retry_count: params.retry,
        rnr_retry_count: params.rnr_retry,
        srq: 0,
        qp_num: 0,
    }
}
