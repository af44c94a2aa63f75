//! Attempts of an endpoint to make connections anew: how far apart they begin.

/// Watches one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Spacing {
    made: u64,
    /// When the last one began, by the endpoint's clock, in nanoseconds.
    last: Option<u64>,
}

impl Spacing {
    /// What is wrong with the attempts that an endpoint has made by now, if something is:
    /// `step` nanoseconds are to lie between two.
    pub fn look(&mut self, made: u64, clock: u64, step: u64) -> Option<String> {
        let new = made - core::mem::replace(&mut self.made, made);
        if new == 0 {
            return None;
        }
        let last = self.last.replace(clock);
        let gap = last.map_or(u64::MAX, |last| clock.saturating_sub(last));
        let close = new > 1 || gap < step;
        close.then(|| format!("{new} attempts {gap} ns after the last, {step} ns apart"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_none_too_soon() {
        let mut spacing = Spacing::default();
        assert_eq!(spacing.look(0, 5, 10), None);
        assert_eq!(spacing.look(1, 7, 10), None);
        assert_eq!(spacing.look(1, 8, 10), None);
        assert_eq!(spacing.look(2, 17, 10), None);
        assert!(spacing.look(3, 26, 10).is_some());
        assert_eq!(spacing.look(4, 36, 10), None);
        assert!(spacing.look(6, 100, 10).is_some());
    }
}
