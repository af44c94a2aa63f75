//! Whose things are: a child of a fork has copies of values whose things are the parent's.

/// The process that made something.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    /// This one.
    pub(crate) fn me() -> Self {
        Self(std::process::id())
    }

    /// Whether this process may unmake it. Elsewhere it is left as it is: the files behind it are
    /// shared, and what a child undid would be gone for its parent.
    pub(crate) fn is_me(self) -> bool {
        self.0 == std::process::id()
    }
}
