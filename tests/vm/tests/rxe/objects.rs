//! Objects of gdr-object over rxe, with the verbs provider: with itself, and with the soft provider in both roles.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use gdr_object::{
    BusyReason, Checksum, Deadline, Element, Error, GoneReason, Grantee, Link, LinkOptions, Mode,
    ObjectName, ObjectOptions, ObjectServer, Place, Rights, Security, ServerOptions, Shape,
    SharedKey, WhenFull,
};
use gdr_rdma::Device;
use gdr_vm_tests::near::in_near;
use gdr_vm_tests::{near, rxe_endpoint};

/// Much longer than any step takes, even under TCG.
fn limit() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn security() -> Security {
    Security::Key(SharedKey::new([9; 32]).unwrap())
}

/// One of the two hosts of the guest, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// The soft provider, in its own namespace.
    Near,
    /// rxe.
    Far,
}

impl Host {
    fn address(self) -> IpAddr {
        match self {
            Self::Near => near::V4,
            Self::Far => rxe_endpoint::V4,
        }
    }

    fn device(self) -> Device {
        match self {
            Self::Near => near::device(near::V4).unwrap(),
            Self::Far => rxe_endpoint::verbs_device("rxe0", rxe_endpoint::V4).unwrap(),
        }
    }

    /// Runs `work` on this host.
    fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Near => in_near(|| Ok(work())).unwrap(),
            Self::Far => work(),
        }
    }

    fn bind(self, port: u16, device: &Device) -> ObjectServer {
        let options = ServerOptions::new(security()).device(device);
        let address = SocketAddr::new(self.address(), port);
        self.run(|| ObjectServer::bind(address, options).unwrap())
    }
}

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

fn row(len: u64) -> ObjectOptions {
    ObjectOptions::new(Element::U8, Shape::row(len).unwrap()).checksum(Checksum::Sum64)
}

const LEN: usize = 300_000;

/// An owner and a reader, from the first publication to the owner's restart.
fn live(owner: Host, reader: Host) {
    let device = owner.device();
    let server = owner.bind(0, &device);
    let address = server.address();
    let shared = row(LEN as u64).grant(Grantee::Everyone, Rights::ReadWrite);
    let shared = server
        .create(name("shared"), shared, &Place::host())
        .unwrap();
    let fixed = server
        .create(name("fixed"), row(9), &Place::host())
        .unwrap();
    fixed.publish(&[1; 9], limit()).unwrap();
    let ring = row(8).mode(Mode::Ring {
        slots: 3,
        when_full: WhenFull::Block,
    });
    let ring = server.create(name("ring"), ring, &Place::host()).unwrap();
    // As another process would open it.
    let peers = reader.device();

    reader.run(|| {
        let link = LinkOptions::new(security()).device(&peers);
        let link = Link::connect(address, link, limit()).unwrap();
        let remote = link.open(name("shared"), limit()).unwrap();
        assert!(matches!(remote.get(limit()), Err(Error::Empty { .. })));
        // Each publication wakes the reader, which gets it whole.
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=20 {
                    shared.publish(&[round; LEN], limit()).unwrap();
                }
            });
            let memory = link.host_memory(LEN as u64).unwrap();
            let (mut seen, mut bytes) = (None, vec![0; LEN]);
            while seen.is_none_or(|seen: gdr_object::Epoch| seen.get() < 20) {
                remote.wait_newer(seen, limit()).unwrap();
                let epoch = remote.get_into(&memory, limit()).unwrap();
                memory.buffer().read_at(0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| u64::from(*byte) == epoch.get()));
                assert!(seen <= Some(epoch));
                seen = Some(epoch);
            }
            // It puts, too.
            memory.buffer().write_at(0, &[77; LEN]).unwrap();
            let put = remote.put_from(&memory, limit()).unwrap();
            assert_eq!((put.get(), shared.newest()), (21, Some(put)));
            assert_eq!(remote.get(limit()).unwrap(), (put, vec![77; LEN]));
        });
        // An object that it may not put stays unchanged.
        let remote = link.open(name("fixed"), limit()).unwrap();
        let memory = link.host_memory(9).unwrap();
        let denied = remote.put_from(&memory, limit());
        assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
        assert_eq!(remote.get(limit()).unwrap().1, [1; 9]);
        // A blocking ring loses nothing.
        let remote = link.open(name("ring"), limit()).unwrap();
        let mut follower = remote.follow(limit()).unwrap();
        let twice = remote.follow(limit());
        assert!(matches!(
            twice,
            Err(Error::Busy {
                by: BusyReason::Followed,
                ..
            })
        ));
        let memory = link.host_memory(8).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for frame in 1..=30_u64 {
                    ring.publish(&frame.to_le_bytes(), limit()).unwrap();
                }
            });
            for frame in 1..=30 {
                let received = follower.next_into(&memory, limit()).unwrap();
                assert_eq!((received.epoch.get(), received.missed), (frame, 0));
                assert_eq!(memory.buffer().load_u64(0).unwrap(), frame);
            }
        });
    });

    // The owner is started again.
    let remote = reader.run(|| {
        let link = LinkOptions::new(security()).device(&peers);
        let link = Link::connect(address, link, limit()).unwrap();
        link.open(name("fixed"), limit()).unwrap()
    });
    drop((shared, fixed, ring));
    drop(server);
    let server = owner.bind(address.port(), &device);
    let fixed = server
        .create(name("fixed"), row(9), &Place::host())
        .unwrap();
    fixed.publish(&[2; 9], limit()).unwrap();
    let why = reader.run(|| {
        loop {
            match remote.get(limit()) {
                Err(Error::Gone { why, .. }) if why != GoneReason::Disconnected => return why,
                Err(Error::Gone { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(why, GoneReason::Restarted);
}

#[test]
#[ignore = "runs in the VM"]
fn rxe_serves_objects_to_itself() {
    live(Host::Far, Host::Far);
}

#[test]
#[ignore = "runs in the VM"]
fn rxe_serves_objects_to_the_soft_provider() {
    live(Host::Far, Host::Near);
}

#[test]
#[ignore = "runs in the VM"]
fn the_soft_provider_serves_objects_to_rxe() {
    live(Host::Near, Host::Far);
}

/// A transfer over several queue pairs of one device.
#[test]
#[ignore = "runs in the VM"]
fn a_large_object_is_striped_over_queue_pairs_of_rxe() {
    const LARGE: usize = (16 << 20) + 3;
    let device = Host::Far.device();
    let server = Host::Far.bind(0, &device);
    let object = row(LARGE as u64);
    let object = server
        .create(name("large"), object, &Place::host())
        .unwrap();
    let bytes: Vec<u8> = (0..LARGE).map(|at| (at >> 8) as u8).collect();
    let epoch = object.publish(&bytes, limit()).unwrap();
    let link = LinkOptions::new(security()).device(&device);
    let link = Link::connect(server.address(), link, limit()).unwrap();
    let got = link.open(name("large"), limit()).unwrap().get(limit());
    assert!(got.unwrap() == (epoch, bytes));
}
