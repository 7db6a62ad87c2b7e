//! Recent connection requests of peers.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::{CommId, ServiceId};

/// The number of requests remembered.
const MOST: usize = 1024;

/// The service of each request. A peer that abandons its request before a reply names only its own ID.
#[derive(Default)]
pub(super) struct Requests(VecDeque<(IpAddr, CommId, ServiceId)>);

impl Requests {
    pub(super) fn remember(&mut self, from: IpAddr, id: CommId, service: ServiceId) {
        if self.service(from, id) == Some(service) {
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((from, id, service));
    }

    /// Returns the service of the peer's latest request with this ID.
    pub(super) fn service(&self, from: IpAddr, id: CommId) -> Option<ServiceId> {
        let mut all = self.0.iter().rev();
        let found = all.find(|(peer, name, _)| (*peer, *name) == (from, id));
        found.map(|(_, _, service)| *service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_repetitions_take_no_room() {
        let mut requests = Requests::default();
        let peer = IpAddr::from([10, 0, 0, 1]);
        for id in 0..=MOST as u32 {
            for _ in 0..2 {
                requests.remember(peer, CommId(id), ServiceId(u64::from(id)));
            }
        }
        assert_eq!(requests.service(peer, CommId(0)), None);
        assert_eq!(requests.service(peer, CommId(1)), Some(ServiceId(1)));
        assert_eq!(requests.service([10, 0, 0, 2].into(), CommId(1)), None);
    }
}
