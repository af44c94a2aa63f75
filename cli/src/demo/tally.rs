//! What became of the demo's messages, as each side saw it.

use hdrhistogram::Histogram;

use super::plan::Plan;

/// What a demo came to.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Responses that the client got.
    pub(super) responses: u64,
    /// Receipts that the client got.
    pub(super) receipts: u64,
    /// Messages that never came as they were sent: the client's own, their answers and receipts.
    pub(super) lost: u64,
    /// Times that a message came once more.
    pub(super) duplicated: u64,
    /// Messages that are not what was sent.
    pub(super) damaged: u64,
    /// Bytes of data that arrived.
    pub(super) bytes: u64,
    /// From a request to its response, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

/// Counts by message; the client's and the server's own ones are added in the end.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// How often each of the client's messages came to the server.
    arrived: Vec<u8>,
    /// How often the answer or receipt of each came to the client.
    answered: Vec<u8>,
    /// Responses that the client got.
    pub(super) responses: u64,
    /// Receipts that the client got.
    pub(super) receipts: u64,
    /// Messages that are not what was sent. They do not count as arrived.
    pub(super) damaged: u64,
    /// Messages whose sender was told that they failed.
    pub(super) failed: u64,
    /// Bytes of data that arrived.
    pub(super) bytes: u64,
    /// From a request to its response, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

impl Tally {
    /// Nothing happened yet.
    ///
    /// # Panics
    /// Never: the histogram's precision is one that it knows.
    pub(super) fn new(plan: &Plan) -> Self {
        let messages = plan.messages() as usize;
        Self {
            arrived: vec![0; messages],
            answered: vec![0; messages],
            responses: 0,
            receipts: 0,
            damaged: 0,
            failed: 0,
            bytes: 0,
            latencies: Histogram::new(3).expect("three digits are possible"),
        }
    }

    /// A message of the client came to the server as it was sent.
    pub(super) fn arrived(&mut self, number: u32, bytes: u64) {
        self.bytes += bytes;
        if let Some(count) = self.arrived.get_mut(number as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// A response came to the client as it was sent.
    pub(super) fn response(&mut self, number: u32, bytes: u64, nanos: u64) {
        self.bytes += bytes;
        self.responses += 1;
        let is_recorded = self.latencies.record(nanos).is_ok();
        debug_assert!(is_recorded, "the histogram grows as needed");
        self.settled(number);
    }

    /// A receipt came to the client.
    pub(super) fn receipt(&mut self, number: u32) {
        self.receipts += 1;
        self.settled(number);
    }

    fn settled(&mut self, number: u32) {
        if let Some(count) = self.answered.get_mut(number as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds what the other side saw.
    pub(super) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.arrived, &other.arrived),
            (&mut self.answered, &other.answered),
        ] {
            for (a, b) in mine.iter_mut().zip(theirs) {
                *a = a.saturating_add(*b);
            }
        }
        self.responses += other.responses;
        self.receipts += other.receipts;
        self.damaged += other.damaged;
        self.failed += other.failed;
        self.bytes += other.bytes;
        let is_added = self.latencies.add(&other.latencies).is_ok();
        debug_assert!(is_added, "the histogram grows as needed");
    }

    /// All in all.
    pub(super) fn figures(&self) -> Figures {
        Figures {
            responses: self.responses,
            receipts: self.receipts,
            lost: self.lost(),
            duplicated: self.duplicated(),
            damaged: self.damaged,
            bytes: self.bytes,
            latencies: self.latencies.clone(),
        }
    }

    /// Messages that never came as they were sent: the client's own, their answers and receipts.
    pub(super) fn lost(&self) -> u64 {
        let never = |counts: &[u8]| counts.iter().filter(|count| **count == 0).count() as u64;
        never(&self.arrived) + never(&self.answered)
    }

    /// Times that a message came once more.
    pub(super) fn duplicated(&self) -> u64 {
        let again = |counts: &[u8]| -> u64 {
            counts
                .iter()
                .map(|count| u64::from(count.saturating_sub(1)))
                .sum()
        };
        again(&self.arrived) + again(&self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_together_know_what_was_lost_and_what_came_twice() {
        let plan = Plan::new(3, None);
        let (mut client, mut server) = (Tally::new(&plan), Tally::new(&plan));
        for number in 0..4 {
            server.arrived(number, 10);
            client.response(number, 5, 1000);
        }
        let mut all = client.clone();
        all.merge(&server);
        assert_eq!((all.lost(), all.duplicated(), all.bytes), (0, 0, 60));
        server.arrived(2, 10);
        server.arrived(2, 10);
        let mut all = Tally::new(&plan);
        all.merge(&server);
        assert_eq!((all.lost(), all.duplicated()), (4, 2), "no answer came");
    }
}
