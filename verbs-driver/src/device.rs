//! A device: which one, what it can do, its protection domain and its completion queue.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use xio_proto::WorkStatus;

use crate::cm::{Channel, Id};
use crate::error::Error;
use crate::fd;
use crate::options::{DeviceChoice, QueueSizes};
use crate::owner::Owner;
use crate::shared::SharedQueue;
use crate::sys;

/// What keeps a device open: librdmacm closes one that nobody refers to.
#[derive(Debug)]
enum Anchor {
    /// An id that is bound to an address of it.
    Id(#[expect(dead_code, reason = "held, not used")] Id),
    /// A list that it is in.
    List(#[expect(dead_code, reason = "held, not used")] DeviceList),
}

/// An open device. librdmacm opens each one once in a process, so others may use it too.
#[derive(Debug)]
pub(crate) struct Device {
    context: NonNull<sys::ibv_context>,
    _anchor: Anchor,
    /// Its limits.
    pub(crate) limits: DeviceLimits,
}

// SAFETY: contexts may be used by any thread, and by several at a time (libibverbs locks).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Its name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// Work requests on one queue.
    pub max_queue: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Entries of one completion queue.
    pub max_completions: u32,
    /// Receives on one queue that queue pairs share; 0 where they cannot.
    pub max_shared: u32,
    /// READs of peers that one queue pair answers at once.
    pub max_reads_answered: u8,
    /// READs that one queue pair has out at once.
    pub max_reads_issued: u8,
    /// Bytes of one message.
    pub max_message: u32,
    /// Ports.
    pub ports: u8,
    /// Ports that are up.
    pub ports_active: u8,
}

/// Prepares the process for forks, once and before anything is registered: a child would else take
/// pages along that the device writes, and the parent go on with copies of them.
///
/// # Errors
/// `LateForFork` when others of the process have registered memory already; what else the library
/// says, such as `ENOSYS` where the kernel cannot.
pub(crate) fn prepare_fork() -> Result<(), Error> {
    // SAFETY: no arguments. It may be called again, and then does nothing.
    match unsafe { sys::ibv_fork_init() } {
        0 => Ok(()),
        libc::EINVAL => Err(Error::LateForFork),
        code => Err(Error::call("ibv_fork_init", code)),
    }
}

impl Device {
    /// Finds and opens a device.
    ///
    /// # Errors
    /// `NoDevice` when there is none at all; `NotFound` when the choice fits none.
    pub(crate) fn open(choice: &DeviceChoice, channel: &Arc<Channel>) -> Result<Self, Error> {
        let (context, anchor) = match choice {
            DeviceChoice::Address(ip) => by_address(*ip, channel)?,
            DeviceChoice::Name(name) => by_name(Some(name))?,
            DeviceChoice::First => by_name(None)?,
        };
        // SAFETY: the anchor keeps it open.
        let limits = unsafe { limits(context.as_ptr()) }?;
        Ok(Self {
            context,
            _anchor: anchor,
            limits,
        })
    }

    /// The context itself.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }

    /// Where asynchronous events come out. All of this process read the same.
    pub(crate) fn events(&self) -> RawFd {
        // SAFETY: the anchor keeps the context open.
        unsafe { self.context.as_ref() }.async_fd
    }

    /// The next asynchronous event, if there is one: its number, and the queue pair that it is
    /// about (0 if about none).
    pub(crate) fn next_event(&self) -> Option<(u32, u32)> {
        let mut event = MaybeUninit::<sys::ibv_async_event>::uninit();
        // SAFETY: the context is open; the event is written before it returns 0.
        if unsafe { sys::ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: just filled.
        let number = unsafe { sys::event_number(event.as_ptr()) };
        let mut queue_pair = 0;
        if sys::event::is_queue_pair(number) {
            // SAFETY: such events have a queue pair, which is not destroyed before they are
            // acknowledged: `ibv_destroy_qp` waits for that.
            queue_pair = unsafe { (*(*event.as_ptr()).element.qp).qp_num };
        }
        // SAFETY: once, and nothing of it is used any more.
        unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Some((number, queue_pair))
    }
}

fn by_address(
    ip: IpAddr,
    channel: &Arc<Channel>,
) -> Result<(NonNull<sys::ibv_context>, Anchor), Error> {
    let mut id =
        Id::new(channel, u64::MAX).map_err(|code| Error::from_open("rdma_create_id", code))?;
    let not_found = |code| match code {
        libc::ENODEV | libc::EADDRNOTAVAIL => Error::NotFound(format!("address {ip}")),
        code => Error::call("rdma_bind_addr", code),
    };
    id.bind((ip, 0).into()).map_err(not_found)?;
    // An address that is not a device's is bound, but to nothing.
    let context =
        NonNull::new(id.context()).ok_or_else(|| Error::NotFound(format!("address {ip}")))?;
    Ok((context, Anchor::Id(id)))
}

fn by_name(name: Option<&str>) -> Result<(NonNull<sys::ibv_context>, Anchor), Error> {
    let list = DeviceList::new()?;
    let mut usable = Err(Error::NoDevice);
    for &context in list.contexts() {
        // SAFETY: the list keeps it open.
        let found = unsafe { limits(context.as_ptr()) }?;
        match name {
            Some(name) if found.name == name => usable = Ok(context),
            None if usable.is_err() && found.ports_active > 0 => usable = Ok(context),
            _ => {}
        }
    }
    let context = usable.map_err(|error| match name {
        Some(name) => Error::NotFound(format!("name {name}")),
        None => error,
    })?;
    Ok((context, Anchor::List(list)))
}

/// What all devices of this machine say of themselves.
///
/// # Errors
/// `NoDevice` when there is none.
pub fn devices() -> Result<Vec<DeviceLimits>, Error> {
    let list = DeviceList::new()?;
    // SAFETY: the list keeps them open.
    let one = |context: &NonNull<sys::ibv_context>| unsafe { limits(context.as_ptr()) };
    list.contexts().iter().map(one).collect()
}

/// Has librdmacm close devices that are gone and that nobody refers to: it keeps them open
/// otherwise, until it looks for devices the next time, and whoever removes one waits for that.
pub(crate) fn close_removed() {
    // Looking is all; there may be no other device.
    let _ = DeviceList::new();
}

/// All devices, open.
#[derive(Debug)]
struct DeviceList {
    raw: NonNull<*mut sys::ibv_context>,
    contexts: Box<[NonNull<sys::ibv_context>]>,
    owner: Owner,
}

// SAFETY: a list of contexts, which may be used by any thread.
unsafe impl Send for DeviceList {}
// SAFETY: as above; it never changes.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    fn new() -> Result<Self, Error> {
        let mut count = 0;
        // SAFETY: the count is written; null, or a list of so many.
        let raw = NonNull::new(unsafe { sys::rdma_get_devices(&raw mut count) })
            .ok_or_else(|| Error::from_open("rdma_get_devices", sys::errno()))?;
        // SAFETY: so many are in the list, until it is freed.
        let contexts = (0..usize::try_from(count).unwrap_or(0))
            .filter_map(|at| NonNull::new(unsafe { *raw.as_ptr().add(at) }))
            .collect::<Box<[_]>>();
        let owner = Owner::me();
        let list = Self {
            raw,
            contexts,
            owner,
        };
        if list.contexts.is_empty() {
            Err(Error::NoDevice)
        } else {
            Ok(list)
        }
    }

    fn contexts(&self) -> &[NonNull<sys::ibv_context>] {
        &self.contexts
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if self.owner.is_me() {
            // SAFETY: the last use.
            unsafe { sys::rdma_free_devices(self.raw.as_ptr()) };
        }
    }
}

/// # Safety
/// The context is open.
unsafe fn limits(context: *mut sys::ibv_context) -> Result<DeviceLimits, Error> {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut attr: sys::ibv_device_attr = unsafe { core::mem::zeroed() };
    // SAFETY: of the caller.
    let code = unsafe { sys::ibv_query_device(context, &raw mut attr) };
    if code != 0 {
        return Err(Error::call("ibv_query_device", code));
    }
    // SAFETY: of the caller; the name is static for as long as the device is there.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name((*context).device)) };
    let (mut max_message, mut active) = (u32::MAX, 0);
    for port in 1..=attr.phys_port_cnt {
        // SAFETY: of the caller.
        let found = unsafe { sys::query_port(context, port) }
            .map_err(|c| Error::call("ibv_query_port", c))?;
        // IBV_PORT_ACTIVE
        if found.state == 4 {
            active += 1;
        }
        max_message = max_message.min(found.max_msg_sz);
    }
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let small = |number: i32| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
    Ok(DeviceLimits {
        name: name.to_string_lossy().into_owned(),
        max_queue: count(attr.max_qp_wr),
        max_sge: count(attr.max_sge),
        max_completions: count(attr.max_cqe),
        max_shared: if attr.max_srq > 0 {
            count(attr.max_srq_wr)
        } else {
            0
        },
        max_reads_answered: small(attr.max_qp_rd_atom),
        max_reads_issued: small(attr.max_qp_init_rd_atom),
        max_message,
        ports: attr.phys_port_cnt,
        ports_active: active,
    })
}

/// A protection domain: keys are good for queue pairs of the same one.
#[derive(Debug)]
pub(crate) struct Domain {
    raw: NonNull<sys::ibv_pd>,
    device: Arc<Device>,
    pub(crate) owner: Owner,
}

// SAFETY: libibverbs allows any thread, and several at a time.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Error> {
        // SAFETY: the device is open, and is held as long as this.
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(device.as_ptr()) })
            .ok_or_else(|| Error::call("ibv_alloc_pd", sys::errno()))?;
        Ok(Self {
            raw,
            device: Arc::clone(device),
            owner: Owner::me(),
        })
    }

    /// The domain itself.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    /// The device's context.
    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        self.device.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.owner.is_me() {
            // SAFETY: the last use; what is in it holds it.
            unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        }
    }
}

/// A completion, copied.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// What was posted.
    pub(crate) wr: u64,
    /// How it ended.
    pub(crate) status: WorkStatus,
    /// Bytes received.
    pub(crate) len: u32,
    /// The number of the queue pair.
    pub(crate) queue_pair: u32,
}

/// A completion queue, and what tells that something is in it.
#[derive(Debug)]
pub(crate) struct Completions {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    /// Notices taken and not acknowledged.
    owed: AtomicU32,
    device: Arc<Device>,
    owner: Owner,
}

// SAFETY: libibverbs allows any thread, and several at a time.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// Completions taken at once.
    pub(crate) const BATCH: usize = 32;
    /// Notices acknowledged at once: it takes a lock.
    const OWED_MAX: u32 = 128;

    /// A queue with room for so many.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(device: &Arc<Device>, depth: u32) -> Result<Self, Error> {
        // SAFETY: the device is open, and is held as long as this.
        let channel = NonNull::new(unsafe { sys::ibv_create_comp_channel(device.as_ptr()) })
            .ok_or_else(|| Error::call("ibv_create_comp_channel", sys::errno()))?;
        let depth = i32::try_from(depth).unwrap_or(i32::MAX);
        // SAFETY: as above; the channel is of this device.
        let raw = NonNull::new(unsafe {
            sys::ibv_create_cq(device.as_ptr(), depth, ptr::null_mut(), channel.as_ptr(), 0)
        });
        let Some(raw) = raw else {
            let error = Error::call("ibv_create_cq", sys::errno());
            // SAFETY: nobody else knows it.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let completions = Self {
            raw,
            channel,
            owed: AtomicU32::new(0),
            device: Arc::clone(device),
            owner: Owner::me(),
        };
        fd::set_nonblocking(completions.as_raw_fd()).map_err(|code| Error::call("fcntl", code))?;
        Ok(completions)
    }

    /// Takes completions into `batch`, at most its capacity, and returns them.
    ///
    /// # Errors
    /// The queue is broken.
    pub(crate) fn poll<'a>(
        &self,
        batch: &'a mut [MaybeUninit<sys::ibv_wc>; Self::BATCH],
    ) -> Result<&'a [sys::ibv_wc], Error> {
        let room = Self::BATCH as i32;
        let place = batch.as_mut_ptr().cast::<sys::ibv_wc>();
        // SAFETY: the queue is ours; so many have room.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), room, place) };
        let count = usize::try_from(count).map_err(|_| Error::call("ibv_poll_cq", -count))?;
        // SAFETY: so many were written.
        Ok(unsafe { core::slice::from_raw_parts(place, count) })
    }

    /// Asks for a notice of the next completion. What came before must be polled for afterwards.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        // SAFETY: the queue is ours.
        match unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) } {
            0 => Ok(()),
            code => Err(Error::call("ibv_req_notify_cq", code)),
        }
    }

    /// Takes the notice that came: one at most comes for each time that it is asked for.
    pub(crate) fn take_notice(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is ours, and never blocks.
        let status =
            unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut context) };
        if status == 0 && self.owed.fetch_add(1, Ordering::Relaxed) + 1 >= Self::OWED_MAX {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let owed = self.owed.swap(0, Ordering::Relaxed);
        // SAFETY: so many were taken and not acknowledged.
        unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), owed) };
    }

    /// How a queue pair is made that completes here.
    pub(crate) fn queue_pair_attributes(
        &self,
        shared: Option<&SharedQueue>,
        sizes: &QueueSizes,
    ) -> sys::ibv_qp_init_attr {
        // SAFETY: plain numbers and pointers, for which 0 is a value.
        let mut attr: sys::ibv_qp_init_attr = unsafe { core::mem::zeroed() };
        attr.send_cq = self.raw.as_ptr();
        attr.recv_cq = self.raw.as_ptr();
        attr.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        attr.cap.max_send_wr = sizes.send;
        if let Some(shared) = shared {
            attr.srq = shared.as_ptr();
        } else {
            attr.cap.max_recv_wr = sizes.receive;
        }
        attr.cap.max_send_sge = sizes.segments;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = sizes.inline;
        attr
    }

    /// Whether the device makes a queue pair of these sizes.
    pub(crate) fn takes(
        &self,
        domain: &Domain,
        shared: Option<&SharedQueue>,
        sizes: &QueueSizes,
    ) -> Result<(), i32> {
        let mut attr = self.queue_pair_attributes(shared, sizes);
        // SAFETY: domain and queues are valid and of one device.
        let raw = unsafe { sys::ibv_create_qp(domain.as_ptr(), &raw mut attr) };
        if raw.is_null() {
            return Err(sys::errno());
        }
        // SAFETY: just made, and nobody else knows it.
        unsafe { sys::ibv_destroy_qp(raw) };
        Ok(())
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is ours.
        unsafe { self.channel.as_ref() }.fd
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        if !self.owner.is_me() {
            return;
        }
        // Destroying waits until all notices that were taken are acknowledged.
        self.acknowledge();
        // SAFETY: the last use; queue pairs hold this.
        unsafe {
            sys::ibv_destroy_cq(self.raw.as_ptr());
            sys::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
        let _ = &self.device;
    }
}

/// A completion as the core knows it.
pub(crate) fn done(wc: &sys::ibv_wc) -> Done {
    Done {
        wr: wc.wr_id,
        status: status(wc.status),
        len: wc.byte_len,
        queue_pair: wc.qp_num,
    }
}

/// `ibv_wc_status` as the core knows it.
fn status(number: u32) -> WorkStatus {
    match number {
        0 => WorkStatus::Success,
        1 | 4 => WorkStatus::LocalAccess,
        5 => WorkStatus::Flushed,
        10 => WorkStatus::RemoteAccess,
        12 => WorkStatus::RetryExceeded,
        13 => WorkStatus::RnrRetryExceeded,
        other => WorkStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_the_header() {
        assert_eq!(status(0), WorkStatus::Success);
        assert_eq!(status(1), WorkStatus::LocalAccess);
        assert_eq!(status(5), WorkStatus::Flushed);
        assert_eq!(status(10), WorkStatus::RemoteAccess);
        assert_eq!(status(12), WorkStatus::RetryExceeded);
        assert_eq!(status(13), WorkStatus::RnrRetryExceeded);
        assert_eq!(status(9), WorkStatus::Other(9));
    }
}
