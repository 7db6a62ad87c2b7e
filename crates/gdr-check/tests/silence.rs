//! Rules about receive queues and rights stay silent where the shadow cannot be certain.

use gdr_check::{
    Checksum, Completion, Memory, NewQueuePair, NewRegion, Object, Receive, Rule, Segment, Service,
    Shadow, Signal, StackId, State,
};

const CONTEXT: Object = Object(1);
const PAIR: Object = Object(2);
const QUEUE: Object = Object(3);
const SHARED: Object = Object(4);
const NUMBER: u32 = 17;
const ROOM: u32 = 2;
const LOCAL_WRITE: u32 = 1;
const REMOTE_READ: u32 = 4;
const WINDOWS: u32 = 16;

/// Fully mapped memory.
struct Mapped;

impl Memory for Mapped {
    fn sum(&self, sum: Checksum, _: u64, _: u32) -> Option<Checksum> {
        Some(sum)
    }

    fn is_mapped(&self, _: u64, _: u32) -> bool {
        true
    }
}

/// Returns a shadow with a queue pair whose receives are private or on a shared queue.
fn shadow(srq: Option<Object>) -> Shadow {
    let mut shadow = Shadow::default();
    if let Some(srq) = srq {
        shadow.shared_queue_created(srq, ROOM);
    }
    shadow.queue_created(QUEUE, 100);
    shadow.pair_created(NewQueuePair {
        context: CONTEXT,
        object: PAIR,
        number: NUMBER,
        service: Service::Connected,
        send_cq: QUEUE,
        receive_cq: QUEUE,
        srq,
        max_sends: 16,
        max_receives: if srq.is_some() { 0 } else { ROOM },
        default_signal: Signal::Signaled,
    });
    shadow.moved(PAIR, State::Init);
    shadow
}

/// Posts `count` receives; expects the last `refused` to be refused.
fn post(shadow: &mut Shadow, srq: Option<Object>, count: u64, refused: usize) {
    for id in 0..count {
        let segment = Segment {
            address: 4096 + id * 64,
            len: 64,
            lkey: 7,
        };
        let receive = Receive {
            id,
            segments: &[segment],
            stack: StackId(1),
        };
        match srq {
            Some(srq) => shadow.receiving_shared(srq, &receive, &Mapped),
            None => shadow.receiving(PAIR, &receive, &Mapped),
        }
    }
    match srq {
        Some(srq) => shadow.shared_receives_posted(srq, refused),
        None => shadow.receives_posted(PAIR, refused),
    }
}

fn complete(shadow: &mut Shadow, qpn: u32, id: u64, status: u32) {
    let completion = Completion {
        id,
        qpn,
        status,
        is_receive: (status == 0).then_some(true),
    };
    shadow.completed((CONTEXT, QUEUE), &completion, &Mapped, || StackId(2));
}

fn overflows(shadow: &mut Shadow) -> bool {
    let found = shadow.take_findings();
    found.iter().any(|it| it.rule == Rule::ReceiveQueueOverflow)
}

#[test]
fn one_more_receive_than_the_room_is_reported_for_both_kinds_of_queues() {
    for srq in [None, Some(SHARED)] {
        let mut shadow = shadow(srq);
        post(&mut shadow, srq, 2, 0);
        assert!(!overflows(&mut shadow), "{srq:?}");
        post(&mut shadow, srq, 1, 0);
        assert!(overflows(&mut shadow), "{srq:?}");
    }
}

#[test]
fn a_place_is_free_again_after_the_poll() {
    for srq in [None, Some(SHARED)] {
        let mut shadow = shadow(srq);
        for _ in 0..5 {
            post(&mut shadow, srq, 2, 0);
            complete(&mut shadow, NUMBER, 0, 0);
            complete(&mut shadow, NUMBER, 1, 0);
        }
        assert!(!overflows(&mut shadow), "{srq:?}");
    }
}

#[test]
fn a_program_that_posts_until_it_is_refused_is_silent() {
    for srq in [None, Some(SHARED)] {
        let mut shadow = shadow(srq);
        post(&mut shadow, srq, 3, 1);
        post(&mut shadow, srq, 1, 0);
        assert!(!overflows(&mut shadow), "{srq:?}");
    }
}

#[test]
fn a_queue_whose_receives_may_have_ended_unseen_is_silent() {
    let unseen: [fn(&mut Shadow); 5] = [
        |shadow| shadow.shared_queue_modified(SHARED),
        |shadow| shadow.pair_destroyed(PAIR),
        // Completions for an unknown queue pair, or with an unknown number.
        |shadow| complete(shadow, NUMBER + 1, 0, 0),
        |shadow| complete(shadow, NUMBER, 99, 0),
        |shadow| complete(shadow, NUMBER, 0, 5),
    ];
    for (number, unseen) in unseen.iter().enumerate() {
        let mut shadow = shadow(Some(SHARED));
        post(&mut shadow, Some(SHARED), 2, 0);
        unseen(&mut shadow);
        post(&mut shadow, Some(SHARED), 3, 0);
        assert!(!overflows(&mut shadow), "{number}");
    }
}

/// Returns what is reported about the rights of a region at the end of a program.
fn unused(access: u32, program: fn(&mut Shadow)) -> Option<String> {
    let mut shadow = shadow(None);
    shadow.registered(NewRegion {
        context: CONTEXT,
        object: Object(9),
        lkey: 7,
        first: 0,
        len: u64::MAX,
        offset: None,
        access,
        stack: StackId(3),
    });
    program(&mut shadow);
    shadow.ending();
    let found = shadow.take_findings();
    let found = found.into_iter().find(|it| it.rule == Rule::RightsUnused);
    found.map(|it| it.detail)
}

#[test]
fn a_right_that_nothing_could_use_is_named() {
    let both = unused(LOCAL_WRITE | REMOTE_READ, |_| {}).unwrap();
    assert!(both.contains("LOCAL_WRITE") && both.contains("REMOTE_READ"));
    let local = unused(LOCAL_WRITE | REMOTE_READ, |shadow| {
        shadow.access_set(PAIR, REMOTE_READ);
    });
    assert!(!local.unwrap().contains("REMOTE_READ"));
    assert_eq!(unused(0, |_| {}), None);
}

#[test]
fn a_right_that_may_be_used_unseen_is_not() {
    let used: [fn(&mut Shadow); 3] = [
        |shadow| post(shadow, None, 1, 0),
        // The context of the queue is unknown.
        |shadow| {
            shadow.shared_queue_created(SHARED, ROOM);
            post(shadow, Some(SHARED), 1, 0);
        },
        |shadow| shadow.unknown_pair_used(CONTEXT),
    ];
    for (number, used) in used.iter().enumerate() {
        assert_eq!(unused(LOCAL_WRITE, *used), None, "{number}");
    }
    assert_eq!(unused(LOCAL_WRITE | WINDOWS, |_| {}), None);
}
