//! Programs with a bug that no call reveals, and their twins without it.
//!
//! Each program usually succeeds. Under the scenario of its bug it fails or hangs every time, and its twin does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gdr_verbs_sys::*;

use crate::faults::{LONG, Pair, SHORT, SUCCESS, connect};
use crate::side::*;

/// The two versions of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    Wrong,
    Right,
}

use Twin::{Right, Wrong};

/// How a program with a bug ends under its scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It reads wrong bytes.
    WrongBytes,
    /// It does not end.
    Hang,
}

/// A program with a bug, and the scenario that reveals it.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    pub(crate) scenario: &'static str,
    pub(crate) ending: Ending,
    pub(crate) program: fn(Twin),
}

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "read_buffer_taken_early",
        scenario: "place order=late by=2s of=read",
        ending: Ending::WrongBytes,
        program: read_buffer_taken_early,
    },
    Bug {
        name: "last_word_polled",
        scenario: "place order=reverse by=2s piece=8 of=write",
        ending: Ending::WrongBytes,
        program: last_word_polled,
    },
    Bug {
        name: "torn_record",
        scenario: "delay by=500ms dir=out of=read qp=0 op=1",
        ending: Ending::WrongBytes,
        program: torn_record,
    },
    Bug {
        name: "not_rebuilt_after_a_link_flap",
        scenario: "link-down at=30ms for=500ms",
        ending: Ending::Hang,
        program: not_rebuilt_after_a_link_flap,
    },
    Bug {
        name: "no_deadline",
        scenario: "hang qp=0 queue=send op=2",
        ending: Ending::Hang,
        program: no_deadline,
    },
];

/// Assumes that a READ is complete after a fixed time, because it usually takes microseconds.
fn read_buffer_taken_early(twin: Twin) {
    let pair = Pair::new(128);
    pair.post_read(1, (0, 1024), 0);
    match twin {
        Wrong => thread::sleep(Duration::from_millis(20)),
        Right => assert_eq!(pair.a.completion().status, SUCCESS),
    }
    for word in &pair.near {
        assert_eq!(word.load(Ordering::Acquire), 0, "it is not what was read");
    }
    pair.close();
}

/// Assumes that a whole message has arrived when its last word has.
fn last_word_polled(twin: Twin) {
    let pair = Pair::new(128);
    let mut wr = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, pair.target, 0);
    if twin == Right {
        wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        pair.b.receive(2, &mut []).unwrap();
    }
    pair.a
        .send(wr, &mut [segment(pair.source, 0, 1024)])
        .unwrap();
    match twin {
        Wrong => wait_until(|| pair.word(127) == 128),
        Right => assert_eq!(pair.b.completion().status, SUCCESS),
    }
    for n in 0..128 {
        assert_eq!(pair.word(n), n + 1, "not all is there");
    }
    pair.close();
}

/// The offset of the body of a record, whose header is its version.
const BODY: u64 = 64;

/// Reads in two parts a record that its owner changes now and then.
fn torn_record(twin: Twin) {
    let pair = Pair::new(128);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut version = 0;
            while !is_over.load(Ordering::Relaxed) {
                version += 2;
                pair.far[0].store(version - 1, Ordering::SeqCst);
                for word in &pair.far[BODY as usize..] {
                    word.store(version, Ordering::SeqCst);
                }
                pair.far[0].store(version, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
            }
        });
        wait_until(|| pair.word(0) >= 2);
        let read = |offset, len| {
            pair.post_read(1, (offset, len), offset);
            assert_eq!(pair.a.completion().status, SUCCESS);
        };
        let version = || pair.near[0].load(Ordering::Acquire);
        wait_until(|| {
            read(0, 8);
            let before = version();
            if twin == Right && before % 2 == 1 {
                return false;
            }
            read(BODY * 8, 512);
            if twin == Right {
                read(0, 8);
            }
            version() == before
        });
        is_over.store(true, Ordering::Relaxed);
        let version = version();
        for word in &pair.near[BODY as usize..] {
            let found = word.load(Ordering::Acquire);
            assert_eq!(found, version, "a part has another version");
        }
    });
    pair.close();
}

/// Keeps using a queue pair that is in ERR after its peer did not answer for a while.
fn not_rebuilt_after_a_link_flap(twin: Twin) {
    let pair = Pair::with_timeout(512, SHORT);
    let begin = Instant::now();
    for n in (0..512).cycle() {
        loop {
            let (status, _) = pair.write(n);
            if status == SUCCESS {
                break;
            }
            if twin == Right {
                for side in [&pair.a, &pair.b] {
                    side.to_state(ibv_qp_state::IBV_QPS_RESET).unwrap();
                }
                connect(&pair.a, &pair.b, SHORT);
            }
        }
        if begin.elapsed() > Duration::from_millis(300) {
            break;
        }
    }
    pair.close();
}

/// Waits for each completion without a deadline.
fn no_deadline(twin: Twin) {
    let pair = Pair::with_timeout(8, LONG);
    let limit = match twin {
        Wrong => Duration::MAX,
        Right => Duration::from_millis(300),
    };
    for n in 0..4 {
        pair.post(n, n * 8, 8);
        let begin = Instant::now();
        while pair.a.poll().is_none() {
            if begin.elapsed() > limit {
                pair.a.to_error().unwrap();
                let flushed = pair.a.completion().status;
                assert_eq!(flushed, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
                return pair.close();
            }
            thread::yield_now();
        }
    }
    pair.close();
}
