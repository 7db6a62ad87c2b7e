//! A network that loses, reorders, duplicates and corrupts packets: no byte may be wrong.

use std::time::Duration;

use conformance::Side;
use gdr_rdma::{
    AckTimeout, AtomicOp, Completion, Deadline, Immediate, MemoryRegion, Mtu, RecvRequest,
    SendRequest, WcStatus, WrId,
};
use gdr_vm_tests::netem::Netem;
use gdr_vm_tests::trace::Trace;

use crate::fixture::*;

/// Tests each kind of fault in both roles and both address families.
macro_rules! fault_tests {
    ($($module:ident: $near:ident, $family:ident;)*) => {$(
        mod $module {
            use super::*;

            fault_tests! { each: $near, $family,
                loss_of_one_in_a_hundred: "loss 1%";
                reordering: "delay 1ms reorder 75% 50%";
                duplication: "duplicate 10%";
                corruption_of_one_in_a_hundred: "corrupt 1%";
                all_together: "delay 1ms loss 1% duplicate 2% corrupt 1% reorder 75% 50%";
            }
        }
    )*};
    (each: $near:ident, $family:ident, $($name:ident: $words:literal;)*) => {$(
        #[test]
        #[ignore = "runs in the VM"]
        fn $name() {
            survive(Host::$near, Family::$family, $words);
        }
    )*};
}

fault_tests! {
    soft_to_rxe_ipv4: Soft, V4;
    soft_to_rxe_ipv6: Soft, V6;
    rxe_to_soft_ipv4: Rxe, V4;
    rxe_to_soft_ipv6: Rxe, V6;
}

/// The maximum time of a round. A lost last packet costs a timeout of at least 33 ms; a connection
/// that does not recover fails earlier.
const ROUND: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 12;
/// Bytes of a request, and of its four requests of the same kind.
const LEN: u64 = 50_000;
const ALL: usize = 4 * LEN as usize;
/// The operands of the atomics of a round.
const ADDED: [u64; 4] = [1, 2, 3, 4];

/// Runs rounds of WRITEs, READs, SENDs and atomics, and compares all bytes.
fn survive(near: Host, family: Family, words: &str) {
    let far = match near {
        Host::Soft => Host::Rxe,
        Host::Rxe => Host::Soft,
    };
    let devices = [near, far].map(|host| host.device(family));
    let mut options = options(Mtu::B1024);
    options.timeout = AckTimeout::new(13);
    let connect = || sides(devices.each_ref(), &options);
    let others = connect();
    // rxe (since 5.19) fails its READ if an acknowledgement of an earlier request arrives after the
    // first READ response, which its completer handles as the end of the READ. A connection with
    // READs only has no such acknowledgements.
    let separate_reads = near == Host::Rxe && words.contains("reorder");
    let reads = separate_reads.then(connect);
    let reads = reads.as_ref().map(|sides| (&sides.0, &sides.1));
    let exchange = Exchange::new(&others.0, &others.1, reads);

    let _trace = Trace::start();
    let netem = Netem::enable(words).unwrap();
    let mut sum = 0;
    for round in 0..ROUNDS {
        exchange.run(round, sum);
        sum += ADDED.iter().sum::<u64>();
    }
    let counter = exchange.counter.buffer().load_u64(0).unwrap();
    assert_eq!(counter, sum, "every atomic exactly once");
    // Without a fault, the test would prove nothing.
    let soft = match near {
        Host::Soft => &devices[0],
        Host::Rxe => &devices[1],
    };
    let counters = soft.counters();
    if words.contains("loss") {
        assert!(netem.lost().unwrap() > 0, "nothing was lost");
    }
    if words.contains("corrupt") {
        let corrupt = counters.icrc_mismatches + counters.malformed;
        assert!(corrupt > 0, "nothing was corrupted: {counters:?}");
    }
}

/// Two sides, and the memory that rounds use.
struct Exchange<'a> {
    near: &'a Side,
    far: &'a Side,
    /// The side that READs.
    reader: &'a Side,
    source: MemoryRegion,
    written: MemoryRegion,
    message: MemoryRegion,
    original: MemoryRegion,
    read: MemoryRegion,
    counter: MemoryRegion,
    fetched: MemoryRegion,
}

impl<'a> Exchange<'a> {
    /// `reader` is another connection of `near`'s device to `far`'s, if READs have one.
    fn new(near: &'a Side, far: &'a Side, reader: Option<(&'a Side, &'a Side)>) -> Self {
        let (reader, server) = reader.unwrap_or((near, far));
        Self {
            source: near.memory(ALL),
            written: far.memory(ALL),
            message: far.memory(LEN as usize),
            original: server.memory(ALL),
            read: reader.memory(ALL),
            counter: far.memory(8),
            fetched: near.memory(32),
            near,
            far,
            reader,
        }
    }

    /// Executes one SEND, four WRITEs, four READs and four atomics, all outstanding at the same time.
    fn run(&self, round: u64, counter: u64) {
        let immediate = Immediate(round as u32);
        let sent = fill(&self.source, 0, ALL, round as u8);
        let kept = fill(&self.original, 0, ALL, !(round as u8));
        let place = self.message.segment(0, LEN).unwrap();
        for receive in [
            RecvRequest::new(WrId(100)).segment(place),
            RecvRequest::new(WrId(101)),
        ] {
            self.far.pair.post_recv(receive).unwrap();
        }
        let part = |region: &MemoryRegion, n: u64| region.segment(n * LEN, LEN).unwrap();
        let message = SendRequest::send(WrId(0)).segment(part(&self.source, 0));
        self.near
            .pair
            .post_send(message.immediate(immediate))
            .unwrap();
        for n in 0..4 {
            let write = SendRequest::write(WrId(1 + n), self.written.remote().at(n * LEN));
            let write = write.segment(part(&self.source, n));
            let write = if n == 3 {
                write.immediate(immediate)
            } else {
                write
            };
            self.near.pair.post_send(write).unwrap();
        }
        for n in 0..4 {
            let read = SendRequest::read(WrId(5 + n), self.original.remote().at(n * LEN));
            let read = read.segment(part(&self.read, n));
            self.reader.pair.post_send(read).unwrap();
        }
        for (n, add) in (0..).zip(ADDED) {
            let add = AtomicOp::FetchAdd { add };
            let atomic = SendRequest::atomic(WrId(9 + n), self.counter.remote().at(0), add);
            let place = self.fetched.segment(8 * n, 8).unwrap();
            self.near.pair.post_send(atomic.segment(place)).unwrap();
        }

        let deadline = Deadline::after(ROUND);
        let finished = |side: &Side| -> Completion {
            let place = format!("round {round}: {}", side.name());
            let done = side.queue.wait(deadline);
            let done = done.unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(done.status, WcStatus::Success, "{place}");
            done
        };
        for id in 0..13 {
            let reads = (5..9).contains(&id);
            let side = if reads { self.reader } else { self.near };
            assert_eq!(finished(side).id, WrId(id));
        }
        let received = [finished(self.far), finished(self.far)];
        assert_eq!(received.map(|done| done.id.0), [100, 101]);
        assert_eq!(received.map(|done| done.immediate), [Some(immediate); 2]);

        let what = |name: &str| format!("round {round}, {name}");
        assert_same(&bytes(&self.written, 0, ALL), &sent, &what("written"));
        assert_same(&bytes(&self.read, 0, ALL), &kept, &what("read"));
        let message = bytes(&self.message, 0, LEN as usize);
        assert_same(&message, &sent[..LEN as usize], &what("the message"));
        let fetched = [0, 8, 16, 24].map(|at| self.fetched.buffer().load_u64(at).unwrap());
        let expected = [0, 1, 3, 6].map(|sum| counter + sum);
        assert_eq!(fetched, expected, "{}", what("the original values"));
    }
}
