//! An owner's links: how many there may be, and which link makes room for another.

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use gdr_rdma::Watch;

use crate::lock::lock;

/// Identifies a link among all links of an owner. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(pub(crate) u64);

/// A source of links that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A user of this host. Programs can choose among its loopback addresses, so these all count as
    /// one.
    User(Option<u32>),
    /// Another host. A host can choose among the IPv6 addresses of its network (RFC 4291, 2.5.1), so they
    /// count as one.
    Host(IpAddr),
}

impl Source {
    /// Returns the source of a peer at this address. `user` is asked for the peer's user number if it is on this host.
    pub(crate) fn of(peer: IpAddr, user: impl FnOnce() -> Option<u32>) -> Self {
        match peer.to_canonical() {
            ip if ip.is_loopback() => Self::User(user()),
            IpAddr::V6(ip) => {
                let network = u128::from(ip) >> 64 << 64;
                Self::Host(Ipv6Addr::from(network).into())
            }
            ip => Self::Host(ip),
        }
    }
}

/// The most links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) all: usize,
    /// The most links from one source.
    pub(crate) of_one: usize,
}

/// Why a link is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// The limit of links is reached.
    All(usize),
    /// The limit of links from this source is reached.
    Source(Source, usize),
}

impl fmt::Display for Crowded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(links) => write!(f, "it serves {links} links already; try again later"),
            Self::Source(source, links) => {
                let whose = match source {
                    Source::User(_) => "user",
                    Source::Host(_) => "host",
                };
                write!(
                    f,
                    "it serves {links} links of your {whose} already; end some of them, or share one \
                     among threads"
                )
            }
        }
    }
}

/// A link's activity, from which the link that makes room is chosen.
#[derive(Clone, Copy, Debug)]
struct Activity {
    source: Source,
    /// When the link connected, or last made a request.
    since: Instant,
    /// How many objects the link has open.
    open: usize,
    has_ended: bool,
}

/// The owner's record of a link.
#[derive(Debug)]
pub(crate) struct LinkRecord {
    pub(crate) id: LinkId,
    pub(crate) watch: Watch,
    activity: Mutex<Activity>,
}

impl LinkRecord {
    /// Records a request.
    pub(crate) fn asks(&self) {
        lock(&self.activity).since = Instant::now();
    }

    /// Records how many objects the link has open.
    pub(crate) fn has_open(&self, objects: usize) {
        lock(&self.activity).open = objects;
    }

    /// Ends the link unless it has an object open; returns whether it did.
    fn end_if_idle(&self) -> bool {
        let mut activity = lock(&self.activity);
        activity.has_ended |= activity.open == 0;
        if activity.has_ended {
            self.watch.end_connection();
        }
        activity.has_ended
    }

    /// Ends the link: whatever its thread is waiting for from the peer fails at once.
    fn end(&self) {
        self.watch.end_connection();
    }
}

/// The links being served, each by a thread.
#[derive(Debug)]
pub(crate) struct LinkTable {
    most: Most,
    next: u64,
    links: Vec<(Arc<LinkRecord>, JoinHandle<()>)>,
}

/// The record of a new link.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) record: Arc<LinkRecord>,
    /// Whether another link was ended for it.
    pub(crate) has_displaced: bool,
}

impl LinkTable {
    pub(crate) const fn new(most: Most) -> Self {
        Self {
            most,
            next: 1,
            links: Vec::new(),
        }
    }

    /// Returns the number of links, after forgetting those whose threads have ended.
    pub(crate) fn count(&mut self) -> usize {
        self.links.retain(|(_, thread)| !thread.is_finished());
        self.links.len()
    }

    /// Makes room for a link of `source`.
    pub(crate) fn admit(&mut self, source: Source, watch: Watch) -> Result<Admitted, Crowded> {
        let threads = self.count();
        // A link that makes room keeps its thread until the thread has noticed.
        if threads >= 2 * self.most.all {
            return Err(Crowded::All(threads));
        }
        let mut has_displaced = false;
        while !has_displaced {
            let others = self.links.iter().map(|(record, _)| *lock(&record.activity));
            let others: Vec<Activity> = others.collect();
            match choose(&others, source, self.most)? {
                // The link may have opened an object in the meantime; then another one is chosen.
                Some(at) => has_displaced = self.links[at].0.end_if_idle(),
                None => break,
            }
        }
        let id = LinkId(self.next);
        self.next += 1;
        let activity = Activity {
            source,
            since: Instant::now(),
            open: 0,
            has_ended: false,
        };
        Ok(Admitted {
            record: Arc::new(LinkRecord {
                id,
                watch,
                activity: Mutex::new(activity),
            }),
            has_displaced,
        })
    }

    /// Adds the link that `thread` serves.
    pub(crate) fn add(&mut self, record: Arc<LinkRecord>, thread: JoinHandle<()>) {
        self.links.push((record, thread));
    }

    /// Ends all links, whatever their peers do.
    pub(crate) fn end(self) {
        for (record, _) in &self.links {
            record.end();
        }
        for (_, thread) in self.links {
            if thread.join().is_err() {
                tracing::error!("the thread of a link panicked");
            }
        }
    }
}

/// Returns the link that makes room for one from `source`; `None` if there is room. Among the links without an open
/// object from the source with the most links, it is the link that has been idle longest.
fn choose(links: &[Activity], source: Source, most: Most) -> Result<Option<usize>, Crowded> {
    let of = |wanted: Source| {
        let here = links.iter().filter(|it| !it.has_ended);
        here.filter(|it| it.source == wanted).count()
    };
    let all = links.iter().filter(|it| !it.has_ended).count();
    let own = of(source);
    let is_full = own >= most.of_one;
    if !is_full && all < most.all {
        return Ok(None);
    }
    let idle = links.iter().enumerate().filter(|(_, it)| {
        let is_candidate = !is_full || it.source == source;
        is_candidate && it.open == 0 && !it.has_ended
    });
    let chosen = idle.min_by_key(|(_, it)| (Reverse(of(it.source)), it.since));
    match chosen {
        Some((at, _)) => Ok(Some(at)),
        None if is_full => Err(Crowded::Source(source, own)),
        None => Err(Crowded::All(all)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MOST: Most = Most { all: 4, of_one: 3 };

    fn host(number: u8) -> Source {
        Source::of([192, 0, 2, number].into(), || None)
    }

    /// Links of these hosts, each idle for this many seconds, with this many open objects.
    fn links(of: &[(u8, u64, usize)]) -> Vec<Activity> {
        let now = Instant::now() + Duration::from_secs(1000);
        let link = |(number, idle, open): &(u8, u64, usize)| Activity {
            source: host(*number),
            since: now - Duration::from_secs(*idle),
            open: *open,
            has_ended: false,
        };
        of.iter().map(link).collect()
    }

    #[test]
    fn an_idle_link_without_an_open_object_makes_room_first_of_the_source_with_the_most() {
        let room = links(&[(1, 0, 0), (1, 0, 1), (2, 0, 0)]);
        assert_eq!(choose(&room, host(3), MOST), Ok(None));
        let full = links(&[(2, 90, 0), (1, 50, 1), (1, 10, 0), (1, 20, 0)]);
        assert_eq!(choose(&full, host(3), MOST), Ok(Some(3)));
        // A link that is ending is already making room.
        let mut ending = full.clone();
        ending[3].has_ended = true;
        assert_eq!(choose(&ending, host(3), MOST), Ok(None));
        // Links with open objects all stay.
        let open = links(&[(1, 50, 1), (1, 50, 1), (2, 50, 2), (2, 50, 1)]);
        assert_eq!(choose(&open, host(3), MOST), Err(Crowded::All(4)));
    }

    #[test]
    fn a_source_with_as_many_links_as_it_may_have_makes_room_by_its_own_only() {
        let own = links(&[(1, 1, 0), (1, 1, 1), (1, 1, 1)]);
        assert_eq!(choose(&own, host(1), MOST), Ok(Some(0)));
        assert_eq!(choose(&own, host(2), MOST), Ok(None));
        let open = links(&[(2, 90, 0), (1, 1, 1), (1, 1, 1), (1, 1, 1)]);
        assert_eq!(
            choose(&open, host(1), MOST),
            Err(Crowded::Source(host(1), 3))
        );
        assert_eq!(choose(&open, host(3), MOST), Ok(Some(0)));
    }

    #[test]
    fn addresses_that_one_host_or_user_can_choose_among_are_one_source() {
        let of = |text: &str| Source::of(text.parse().unwrap(), || Some(4001));
        for (one, other) in [
            ("127.0.0.1", "127.9.9.9"),
            ("127.0.0.1", "::1"),
            ("::ffff:127.0.0.1", "127.0.0.2"),
            ("192.0.2.1", "::ffff:192.0.2.1"),
            ("2001:db8::1", "2001:db8::ffff:0:0:1"),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
        for (one, other) in [
            ("192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8:0:1::1"),
            ("127.0.0.1", "192.0.2.1"),
        ] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
        let other_user = Source::of([127, 0, 0, 1].into(), || Some(4002));
        assert_ne!(of("127.0.0.1"), other_user);
    }
}
