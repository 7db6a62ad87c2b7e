//! Links that send messages no correct link sends, or at times when no correct link does: limits hold, and other links
//! are served.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod fixture;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gdr_object::{
    Deadline, Error, Grantee, Link, LinkOptions, ObjectServer, Place, Rights, Security,
    ServerOptions,
};
use gdr_rdma::{
    Access, Buffer, ConnectionOptions, Device, Mtu, PeerInfo, QueuePair, QueuePairOptions,
    RemoteMemory, Rkey, SendRequest, Session, SoftOptions, WcStatus, WrId,
};
use serde_json::{Value, json};

use fixture::{StopOnDrop, limit, name, row, server};

/// A link that can send any message.
struct RawLink {
    session: Session,
    device: Device,
}

impl RawLink {
    /// Connects without sending anything.
    fn silent(server: &ObjectServer) -> Self {
        let device = Device::soft_with(SoftOptions::new([127, 0, 0, 1].into()).port(0)).unwrap();
        let session = Session::connect(server.address(), &Security::Loopback, limit()).unwrap();
        Self { session, device }
    }

    fn new(server: &ObjectServer) -> Self {
        let mut link = Self::silent(server);
        let welcome = link.ask(&json!({"hello": {"version": 1}}));
        assert!(welcome.get("welcome").is_some(), "{welcome}");
        link
    }

    /// Returns a link that has opened the object, and the object's number.
    fn opened(server: &ObjectServer, object: &str) -> (Self, Value) {
        let mut link = Self::new(server);
        let opened = link.ask(&json!({"open": {"name": object}}));
        let number = opened["opened"]["object"].clone();
        assert!(number.is_u64(), "{opened}");
        (link, number)
    }

    fn try_ask(&mut self, request: &Value) -> gdr_rdma::Result<Value> {
        self.session.send(request.to_string().as_bytes(), limit())?;
        self.answer()
    }

    fn answer(&mut self) -> gdr_rdma::Result<Value> {
        let answer = self.session.receive(limit())?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.try_ask(request).unwrap()
    }

    /// Sends requests in a loop until the connection ends or the flag is set.
    fn flood(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.try_ask(&json!("ping")).is_ok() {}
    }

    fn lease(&mut self, object: &Value, milliseconds: u64) -> Value {
        let lease = json!({"object": object, "least": 1, "milliseconds": milliseconds});
        self.ask(&json!({ "lease": lease }))
    }

    fn begin_put(&mut self, object: &Value, milliseconds: u64) -> Value {
        let put = json!({"object": object, "milliseconds": milliseconds});
        let begun = self.ask(&json!({ "begin-put": put }));
        begun["writable"].clone()
    }

    fn end_put(&mut self, object: &Value, epoch: &Value) -> Value {
        let put = json!({"object": object, "epoch": epoch, "checksum": 0});
        self.ask(&json!({ "end-put": put }))
    }

    /// Connects a queue pair for objects that peers may write.
    fn queue_pair(&mut self) -> Writer {
        let queue = self.device.completion_queue(16);
        let domain = self.device.protection_domain();
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        let mailbox = Buffer::host(64 << 10).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mailbox = domain.register(&mailbox, access).unwrap();
        let mtu = Mtu::B1024;
        let connect = json!({"domain": "writable", "mtu": mtu.code()});
        let agreed = self.ask(&json!({ "connect": connect }));
        assert_eq!(agreed["connecting"]["mtu"], mtu.code());
        let ours = PeerInfo {
            endpoint: pair.endpoint(),
            path_mtu: mtu,
            regions: vec![mailbox.remote()],
        };
        let theirs = self.session.introduce(&ours, limit()).unwrap();
        let options = ConnectionOptions::new(mtu);
        pair.connect(&theirs.endpoint, &options).unwrap();
        self.session.barrier(limit()).unwrap();
        assert_eq!(self.answer().unwrap(), json!("done"));
        let bytes = Buffer::host(4).unwrap();
        bytes.write_at(0, &[9; 4]).unwrap();
        let source = domain.register(&bytes, Access::LOCAL_WRITE).unwrap();
        Writer {
            pair,
            queue,
            source,
            _mailbox: mailbox,
        }
    }
}

/// A queue pair of a raw link, and four bytes to write.
struct Writer {
    pair: QueuePair,
    queue: gdr_rdma::CompletionQueue,
    source: gdr_rdma::MemoryRegion,
    _mailbox: gdr_rdma::MemoryRegion,
}

impl Writer {
    fn write(&self, to: &Value) -> WcStatus {
        let number = |field: &str| to[field].as_u64().unwrap();
        let memory = RemoteMemory {
            addr: number("addr"),
            len: number("len"),
            rkey: Rkey(number("rkey") as u32),
        };
        let write = SendRequest::write(WrId(1), memory.at(0));
        let write = write.segment(self.source.segment(0, 4).unwrap());
        self.pair.post_send(write).unwrap();
        self.queue.wait(limit()).unwrap().status
    }
}

/// Returns an object of four bytes that peers may write.
fn writable(server: &ObjectServer) -> gdr_object::Object {
    let options = row(4).grant(Grantee::Everyone, Rights::ReadWrite);
    server.create(name("w"), options, &Place::host()).unwrap()
}

fn crowded(most: usize, of_one: usize) -> ObjectServer {
    let options = ServerOptions::new(Security::Loopback)
        .most_peers(most)
        .most_peers_of_one_host(of_one);
    ObjectServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap()
}

fn connect(server: &ObjectServer) -> gdr_object::Result<Link> {
    let options = LinkOptions::new(Security::Loopback);
    Link::connect(server.address(), options, limit())
}

#[test]
fn an_owner_ends_while_links_ask_without_a_pause() {
    let server = server();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for _ in 0..3 {
            let mut link = RawLink::new(&server);
            let stop = &stop;
            scope.spawn(move || link.flood(stop));
        }
        // One link that has not sent its version, and one whose answers are not read.
        let _silent = RawLink::silent(&server);
        let mut deaf = RawLink::new(&server);
        for _ in 0..100 {
            let list = json!({"list": {"after": null}}).to_string();
            deaf.session.send(list.as_bytes(), limit()).unwrap();
        }
        let (ended, end) = mpsc::channel();
        scope.spawn(move || {
            drop(server);
            let _ = ended.send(());
        });
        end.recv_timeout(Duration::from_secs(60)).unwrap();
    });
}

#[test]
fn the_time_of_a_put_is_over_also_while_its_link_asks_without_a_pause() {
    let server = server();
    let object = writable(&server);
    let (mut link, number) = RawLink::opened(&server, "w");
    let begun = link.begin_put(&number, 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let flooding = scope.spawn(|| {
            link.flood(&stop);
            link
        });
        let waited = limit();
        while object.publish(&[1; 4], limit()).is_err() {
            assert!(!waited.has_passed());
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        let mut link = flooding.join().unwrap();
        let late = link.end_put(&number, &begun["epoch"]);
        assert_eq!(late, json!({"refused": "late"}));
    });
    assert_eq!(object.newest().map(|it| it.get()), Some(1));
}

#[test]
fn a_link_writes_its_slot_until_the_end_of_the_put_and_not_after() {
    let server = server();
    let object = writable(&server);
    object.publish(&[1; 4], limit()).unwrap();
    let reader = fixture::link(&server).open(name("w"), limit()).unwrap();
    for ends_by in ["end", "abandon", "time"] {
        let before = reader.get(limit()).unwrap();
        let (mut link, number) = RawLink::opened(&server, "w");
        let writer = link.queue_pair();
        let milliseconds = match ends_by {
            "time" => 0,
            _ => 60_000,
        };
        let begun = link.begin_put(&number, milliseconds);
        if ends_by != "time" {
            assert_eq!(writer.write(&begun["memory"]), WcStatus::Success);
        }
        let expected = match ends_by {
            "end" => {
                assert_eq!(link.end_put(&number, &begun["epoch"]), json!("done"));
                let epoch = object.newest().unwrap();
                (epoch, vec![9; 4])
            }
            "abandon" => {
                let abandon = json!({"abandon-put": {"object": number}});
                assert_eq!(link.ask(&abandon), json!("done"));
                before
            }
            // The put has ended at the latest when the next message arrives.
            _ => {
                link.ask(&json!("ping"));
                before
            }
        };
        assert_eq!(writer.write(&begun["memory"]), WcStatus::RemoteAccess);
        assert_eq!(reader.get(limit()).unwrap(), expected, "{ends_by}");
        object.publish(&[2; 4], limit()).unwrap();
    }
}

#[test]
fn a_put_that_ends_with_another_epoch_publishes_nothing() {
    let server = server();
    let object = writable(&server);
    let (mut link, number) = RawLink::opened(&server, "w");
    link.begin_put(&number, 60_000);
    for (of, epoch) in [(number.clone(), 2), (json!(77), 1)] {
        let late = link.end_put(&of, &json!(epoch));
        assert_eq!(late, json!({"refused": "late"}));
        assert_eq!(object.newest(), None);
        // The put has timed out.
        let late = link.end_put(&number, &json!(1));
        assert_eq!(late, json!({"refused": "late"}));
        link.begin_put(&number, 60_000);
    }
    assert_eq!(link.end_put(&number, &json!(1)), json!("done"));
}

#[test]
fn a_link_has_a_limited_number_of_leases_and_those_that_are_over_do_not_count() {
    let server = server();
    let object = writable(&server);
    object.publish(&[1; 4], limit()).unwrap();
    let (mut link, number) = RawLink::opened(&server, "w");
    for _ in 0..100 {
        let leased = link.lease(&number, 0);
        assert!(leased.get("leased").is_some(), "{leased}");
    }
    for _ in 0..64 {
        let leased = link.lease(&number, 60_000);
        assert!(leased.get("leased").is_some(), "{leased}");
    }
    let most = link.lease(&number, 60_000);
    assert_eq!(most, json!({"refused": {"too-many": {"most": 64}}}));
    let release = json!({"release": {"object": number, "epoch": 1}});
    assert_eq!(link.ask(&release), json!("done"));
    assert!(link.lease(&number, 60_000).get("leased").is_some());
}

#[test]
fn a_link_that_releases_or_leaves_ends_its_own_leases_only() {
    let server = server();
    let object = writable(&server);
    object.publish(&[1; 4], limit()).unwrap();
    let [mut holder, mut other, mut third] = [(); 3].map(|()| RawLink::opened(&server, "w").0);
    let number = json!(1);
    // This lease has expired when the next one begins.
    other.lease(&number, 0);
    let held = holder.lease(&number, 60_000);
    assert_eq!(held["leased"]["epoch"], 1);
    let release = json!({"release": {"object": number, "epoch": 1}});
    for _ in 0..3 {
        other.ask(&release);
    }
    let leave = |link: RawLink| {
        let before = server.stats().links;
        drop(link);
        while server.stats().links == before {
            thread::yield_now();
        }
    };
    other.lease(&number, 60_000);
    leave(other);
    for _ in 0..4 {
        object.publish(&[2; 4], limit()).unwrap();
    }
    // The slot of the first epoch is still leased.
    assert_eq!(third.lease(&number, 0)["leased"]["epoch"], 1);
    leave(holder);
    assert_eq!(third.lease(&number, 0)["leased"]["epoch"], 5);
}

#[test]
fn idle_links_make_room_for_a_reader_and_those_with_an_open_object_stay() {
    let server = crowded(4, 4);
    let object = writable(&server);
    let epoch = object.publish(&[1; 4], limit()).unwrap();
    let (mut busy, _) = RawLink::opened(&server, "w");
    let idle: Vec<RawLink> = (0..50).map(|_| RawLink::new(&server)).collect();
    let link = connect(&server).unwrap();
    let remote = link.open(name("w"), limit()).unwrap();
    assert_eq!(remote.get(limit()).unwrap(), (epoch, vec![1; 4]));
    assert_eq!(busy.ask(&json!("ping")), json!("done"));
    let stats = server.stats();
    assert_eq!((stats.links_refused, stats.links_displaced), (0, 48));
    drop(idle);
}

#[test]
fn links_of_one_host_with_open_objects_leave_room_for_other_hosts() {
    let server = crowded(4, 2);
    let _object = writable(&server);
    let links = [(); 2].map(|()| RawLink::opened(&server, "w"));
    let refused = connect(&server).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("serves 2 links of your user already"),
        "{refused}"
    );
    assert_eq!(server.stats().links_refused, 1);
    drop(links);
}

#[test]
fn a_link_that_does_not_say_its_version_is_ended() {
    let server = server();
    let mut silent = RawLink::silent(&server);
    let ended = silent.session.receive(limit());
    assert!(matches!(ended, Err(gdr_rdma::Error::Handshake(_))));
    // A link that has sent its version may stay silent.
    let mut quiet = RawLink::new(&server);
    assert_eq!(quiet.ask(&json!("ping")), json!("done"));
}

#[test]
fn a_closed_server_accepts_no_link_and_its_first_link_finds_the_objects() {
    let address = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions::new(Security::Loopback).closed();
    let server = ObjectServer::bind(address, options.clone()).unwrap();
    let soon = Deadline::after(Duration::from_millis(200));
    let early = Link::connect(server.address(), LinkOptions::new(Security::Loopback), soon);
    assert!(matches!(early, Err(Error::NoAnswer { .. })), "{early:?}");
    thread::scope(|scope| {
        let reader = scope.spawn(|| connect(&server)?.open(name("w"), limit()));
        let _object = writable(&server);
        server.open();
        reader.join().unwrap().unwrap();
    });
    // A closed server that is never opened ends, too.
    drop(ObjectServer::bind(address, options).unwrap());
}
