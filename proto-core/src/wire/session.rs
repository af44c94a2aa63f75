//! Payloads of the session setup: who wants to talk about what, and the three answers.

use core::fmt;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::{Violation, What};
use super::frame::SETUP_PAYLOAD_MAX;
use super::headers::{
    AcceptBody, RedirectBody, RejectBody, SessionRequestBody, SessionResponseBody,
};

const ACCEPT: u16 = 1;
const REDIRECT: u16 = 2;
const REJECT: u16 = 3;

/// A payload that is longer than it may be.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TooLong {
    /// Bytes that the payload would have.
    pub len: usize,
    /// Bytes that it may have.
    pub max: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, max } = self;
        write!(f, "payload of {len} bytes, at most {max} possible")
    }
}

impl core::error::Error for TooLong {}

/// Reads a payload from its start to its end; every length is checked against what is left.
struct Reader<'a> {
    rest: &'a [u8],
    at: u32,
}

impl<'a> Reader<'a> {
    const fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            at: 0,
        }
    }

    /// Takes a fixed layout.
    fn layout<T>(&mut self) -> Result<&'a T, Violation>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let Ok((layout, rest)) = T::ref_from_prefix(self.rest) else {
            return Err(What::Truncated.at(self.at, self.rest.len() as u64));
        };
        self.rest = rest;
        self.at += size_of::<T>() as u32;
        Ok(layout)
    }

    /// Takes `len` bytes; `what` is the violation if they are not there.
    fn bytes(&mut self, len: U16, what: What) -> Result<&'a [u8], Violation> {
        let Some((bytes, rest)) = self.rest.split_at_checked(usize::from(len.get())) else {
            return Err(what.at(self.at, len.get()));
        };
        self.rest = rest;
        self.at += u32::from(len.get());
        Ok(bytes)
    }

    /// Takes `count` portals.
    fn portals(&mut self, count: U16) -> Result<Portals<'a>, Violation> {
        let (list, list_at) = (self.rest, self.at);
        for _ in 0..count.get() {
            let len = *self.layout::<U16>()?;
            self.bytes(len, What::PortalLength)?;
        }
        let list_len = (self.at - list_at) as usize;
        Ok(Portals(List::Wire {
            count: count.get(),
            bytes: &list[..list_len],
        }))
    }

    /// Takes the private data, which must be the rest.
    fn private(&mut self, len: U16) -> Result<&'a [u8], Violation> {
        let bytes = self.bytes(len, What::PrivateLength)?;
        if self.rest.is_empty() {
            Ok(bytes)
        } else {
            Err(What::TrailingBytes.at(self.at, self.rest.len() as u64))
        }
    }
}

/// Writes a payload from its start; the room was checked before.
struct Writer<'b> {
    buf: &'b mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, layout: &T) {
        let bytes = layout.as_bytes();
        self.buf[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Makes a writer over `buf` if `len` bytes fit there and into a setup payload.
fn writer(buf: &mut [u8], len: usize) -> Result<Writer<'_>, TooLong> {
    let max = buf.len().min(SETUP_PAYLOAD_MAX);
    if len > max {
        return Err(TooLong { len, max });
    }
    Ok(Writer { buf, at: 0 })
}

/// Payload of `SessionSetupReq` (PROTOCOL.md 7.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SessionSetupRequest<'a> {
    /// The requester's id of the session; zero is an id like any other.
    pub session_id: u32,
    /// Bytes of messages that the requester queues for sending.
    pub snd_bytes: u64,
    /// Bytes of received messages that the requester holds.
    pub rcv_bytes: u64,
    /// Messages that the requester queues for sending.
    pub snd_msgs: u16,
    /// Received messages that the requester holds.
    pub rcv_msgs: u16,
    /// What is asked for, as sent: not necessarily UTF-8, and see
    /// [`uri_trimmed`](Self::uri_trimmed).
    pub uri: &'a [u8],
    /// The application's own bytes.
    pub private: &'a [u8],
}

impl<'a> SessionSetupRequest<'a> {
    /// Parses a payload. Offsets count from its start.
    ///
    /// # Errors
    /// [`What::Truncated`], [`What::UriLength`], [`What::PrivateLength`] or
    /// [`What::TrailingBytes`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Violation> {
        let mut reader = Reader::new(payload);
        let body: &SessionRequestBody = reader.layout()?;
        Ok(Self {
            session_id: body.session_id.get(),
            snd_bytes: body.snd_bytes.get(),
            rcv_bytes: body.rcv_bytes.get(),
            snd_msgs: body.snd_msgs.get(),
            rcv_msgs: body.rcv_msgs.get(),
            uri: reader.bytes(body.uri_len, What::UriLength)?,
            private: reader.private(body.private_len)?,
        })
    }

    /// Returns the uri up to its first zero byte: a libxio that was redirected to a shorter one
    /// sends that, a zero, and whatever its memory held up to the old length.
    #[must_use]
    pub fn uri_trimmed(&self) -> &'a [u8] {
        let end = self.uri.iter().position(|byte| *byte == 0);
        &self.uri[..end.unwrap_or(self.uri.len())]
    }

    /// Writes the payload to the start of `buf` and returns its length.
    ///
    /// # Errors
    /// [`TooLong`] if it does not fit into `buf` or into [`SETUP_PAYLOAD_MAX`] bytes.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, TooLong> {
        let len = size_of::<SessionRequestBody>() + self.uri.len() + self.private.len();
        let mut out = writer(buf, len)?;
        // Both lengths are below the payload limit, so the casts keep their values.
        out.put(&SessionRequestBody {
            session_id: U32::new(self.session_id),
            snd_bytes: U64::new(self.snd_bytes),
            rcv_bytes: U64::new(self.rcv_bytes),
            snd_msgs: U16::new(self.snd_msgs),
            rcv_msgs: U16::new(self.rcv_msgs),
            uri_len: U16::new(self.uri.len() as u16),
            private_len: U16::new(self.private.len() as u16),
        });
        out.put(self.uri);
        out.put(self.private);
        Ok(out.at)
    }
}

/// A list of portal uris: from a payload, or to be put into one.
#[derive(Copy, Clone, Default)]
pub struct Portals<'a>(List<'a>);

#[derive(Copy, Clone)]
enum List<'a> {
    /// As in a payload, proven well-formed when it was parsed.
    Wire { count: u16, bytes: &'a [u8] },
    /// As an application has it.
    Slices(&'a [&'a [u8]]),
}

impl Default for List<'_> {
    fn default() -> Self {
        Self::Slices(&[])
    }
}

impl<'a> Portals<'a> {
    /// Makes a list to be sent.
    #[must_use]
    pub const fn from_slices(uris: &'a [&'a [u8]]) -> Self {
        Self(List::Slices(uris))
    }

    /// Returns the number of portals.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            List::Wire { count, .. } => count as usize,
            List::Slices(uris) => uris.len(),
        }
    }

    /// Returns whether there are no portals.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the uris in order.
    #[must_use]
    pub const fn iter(&self) -> PortalIter<'a> {
        PortalIter(self.0)
    }

    /// Returns how many bytes the list takes in a payload.
    fn wire_len(&self) -> usize {
        self.iter().map(|uri| size_of::<U16>() + uri.len()).sum()
    }

    fn write(&self, out: &mut Writer<'_>) {
        for uri in self.iter() {
            out.put(&U16::new(uri.len() as u16));
            out.put(uri);
        }
    }
}

impl PartialEq for Portals<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Portals<'_> {}

impl fmt::Debug for Portals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for Portals<'a> {
    type Item = &'a [u8];
    type IntoIter = PortalIter<'a>;

    fn into_iter(self) -> PortalIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Portals<'a> {
    type Item = &'a [u8];
    type IntoIter = PortalIter<'a>;

    fn into_iter(self) -> PortalIter<'a> {
        self.iter()
    }
}

/// The uris of [`Portals`], in order.
#[derive(Clone)]
pub struct PortalIter<'a>(List<'a>);

impl<'a> Iterator for PortalIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            List::Wire { count, bytes } => {
                *count = count.checked_sub(1)?;
                let (len, rest) = bytes.split_first_chunk::<2>()?;
                let len = usize::from(u16::from_be_bytes(*len));
                let (uri, rest) = rest.split_at_checked(len)?;
                *bytes = rest;
                Some(uri)
            }
            List::Slices(uris) => {
                let (first, rest) = uris.split_first()?;
                *uris = rest;
                Some(first)
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = Portals(self.0).len();
        (len, Some(len))
    }
}

impl ExactSizeIterator for PortalIter<'_> {}

impl fmt::Debug for PortalIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// Payload of `SessionSetupRsp` (PROTOCOL.md 7.1, 7.2).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SessionSetupResponse<'a> {
    /// The session exists.
    Accept {
        /// The responder's id of the session: the requester's `dest_session` from now on.
        session_id: u32,
        /// Bytes of messages that the responder queues for sending.
        snd_bytes: u64,
        /// Bytes of received messages that the responder holds.
        rcv_bytes: u64,
        /// Messages that the responder queues for sending.
        snd_msgs: u16,
        /// Received messages that the responder holds.
        rcv_msgs: u16,
        /// Where to join the session. If empty, it is online on this connection.
        portals: Portals<'a>,
        /// The application's own bytes.
        private: &'a [u8],
    },
    /// The session is to be asked for elsewhere.
    Redirect {
        /// The responder's id of the session that it does not open.
        session_id: u32,
        /// Where to ask; at least one.
        portals: Portals<'a>,
        /// The application's own bytes; libxio sends none.
        private: &'a [u8],
    },
    /// There is no session.
    Reject {
        /// The responder's id of the session that it does not open.
        session_id: u32,
        /// Why: a code of [`status`](super::status), or any number the application chose.
        reason: u32,
        /// The application's own bytes.
        private: &'a [u8],
    },
}

impl<'a> SessionSetupResponse<'a> {
    /// Parses a payload. Offsets count from its start.
    ///
    /// # Errors
    /// [`What::Truncated`], [`What::SessionAction`], [`What::PortalLength`],
    /// [`What::NoPortals`], [`What::PrivateLength`] or [`What::TrailingBytes`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Violation> {
        let mut reader = Reader::new(payload);
        let start: &SessionResponseBody = reader.layout()?;
        let session_id = start.session_id.get();
        match start.action.get() {
            ACCEPT => {
                let body: &AcceptBody = reader.layout()?;
                Ok(Self::Accept {
                    session_id,
                    snd_bytes: body.snd_bytes.get(),
                    rcv_bytes: body.rcv_bytes.get(),
                    snd_msgs: body.snd_msgs.get(),
                    rcv_msgs: body.rcv_msgs.get(),
                    portals: reader.portals(body.portals)?,
                    private: reader.private(body.private_len)?,
                })
            }
            REDIRECT => {
                let at = reader.at;
                let body: &RedirectBody = reader.layout()?;
                if body.portals.get() == 0 {
                    return Err(What::NoPortals.at(at, 0u8));
                }
                Ok(Self::Redirect {
                    session_id,
                    portals: reader.portals(body.portals)?,
                    private: reader.private(body.private_len)?,
                })
            }
            REJECT => {
                let body: &RejectBody = reader.layout()?;
                Ok(Self::Reject {
                    session_id,
                    reason: body.reason.get(),
                    private: reader.private(body.private_len)?,
                })
            }
            other => Err(What::SessionAction.at(4, other)),
        }
    }

    /// Returns the responder's id of the session.
    #[must_use]
    pub const fn session_id(&self) -> u32 {
        match *self {
            Self::Accept { session_id, .. }
            | Self::Redirect { session_id, .. }
            | Self::Reject { session_id, .. } => session_id,
        }
    }

    /// Writes the payload to the start of `buf` and returns its length.
    ///
    /// # Errors
    /// [`TooLong`] if it does not fit into `buf` or into [`SETUP_PAYLOAD_MAX`] bytes.
    ///
    /// # Panics
    /// On a redirect without portals.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, TooLong> {
        let mut out = writer(buf, self.wire_len())?;
        // Every length is below the payload limit, so the casts keep their values.
        let start = |session_id, action| SessionResponseBody {
            session_id: U32::new(session_id),
            action: U16::new(action),
        };
        match self {
            Self::Accept {
                session_id,
                snd_bytes,
                rcv_bytes,
                snd_msgs,
                rcv_msgs,
                portals,
                private,
            } => {
                out.put(&start(*session_id, ACCEPT));
                out.put(&AcceptBody {
                    snd_bytes: U64::new(*snd_bytes),
                    rcv_bytes: U64::new(*rcv_bytes),
                    snd_msgs: U16::new(*snd_msgs),
                    rcv_msgs: U16::new(*rcv_msgs),
                    portals: U16::new(portals.len() as u16),
                    private_len: U16::new(private.len() as u16),
                });
                portals.write(&mut out);
                out.put(*private);
            }
            Self::Redirect {
                session_id,
                portals,
                private,
            } => {
                assert!(!portals.is_empty(), "redirect to nowhere");
                out.put(&start(*session_id, REDIRECT));
                out.put(&RedirectBody {
                    portals: U16::new(portals.len() as u16),
                    private_len: U16::new(private.len() as u16),
                });
                portals.write(&mut out);
                out.put(*private);
            }
            Self::Reject {
                session_id,
                reason,
                private,
            } => {
                out.put(&start(*session_id, REJECT));
                out.put(&RejectBody {
                    reason: U32::new(*reason),
                    private_len: U16::new(private.len() as u16),
                });
                out.put(*private);
            }
        }
        Ok(out.at)
    }

    /// Returns how many bytes [`encode`](Self::encode) writes.
    fn wire_len(&self) -> usize {
        let body = match self {
            Self::Accept {
                portals, private, ..
            } => size_of::<AcceptBody>() + portals.wire_len() + private.len(),
            Self::Redirect {
                portals, private, ..
            } => size_of::<RedirectBody>() + portals.wire_len() + private.len(),
            Self::Reject { private, .. } => size_of::<RejectBody>() + private.len(),
        };
        size_of::<SessionResponseBody>() + body
    }
}

/// Takes a list of portals apart, as it lies in an answer: a length of two bytes and a text each.
/// Ends at what is no entry any more.
pub fn portals(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = list;
    core::iter::from_fn(move || {
        let (len, after) = rest.split_first_chunk::<2>()?;
        let (text, after) = after.split_at_checked(u16::from_be_bytes(*len).into())?;
        rest = after;
        Some(text)
    })
}
