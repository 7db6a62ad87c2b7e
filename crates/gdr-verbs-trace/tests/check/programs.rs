//! The programs. Each has a bug, and a twin without it.

use gdr_check::Rule;
use gdr_verbs_sys::*;

use crate::link::{Link, PAGE, Sizes, page};

/// Which of the twins a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    Wrong,
    Right,
}

use Twin::{Right, Wrong};

/// A rule and its program.
pub(crate) type Program = (Rule, fn(Twin));

pub(crate) const PROGRAMS: &[Program] = &[
    (Rule::SendBufferChanged, send_buffer_changed),
    (Rule::BufferUnmapped, buffer_unmapped),
    (Rule::DeregisteredWhilePosted, deregistered_while_posted),
    (Rule::KeyAfterDeregistration, key_after_deregistration),
    (Rule::OutsideRegion, outside_region),
    (Rule::NotWritable, not_writable),
    (Rule::LocalProtection, local_protection),
    (Rule::RemoteAccess, remote_access),
    (Rule::ReceivesOverlap, receives_overlap),
    (Rule::UnsignaledOverflow, unsignaled_overflow),
    (Rule::SendQueueOverflow, send_queue_overflow),
    (Rule::ReceiveQueueOverflow, receive_queue_overflow),
    (Rule::CqOverrun, cq_overrun),
    (Rule::PostInError, post_in_error),
    (Rule::PostNotReady, post_not_ready),
    (Rule::MissedEvent, missed_event),
    (Rule::EventsUnacknowledged, events_unacknowledged),
    (Rule::AfterFork, after_fork),
    (Rule::SameBuffer, same_buffer),
    (Rule::WaitsForever, waits_forever),
    (Rule::CompletionsUnpolled, completions_unpolled),
    (Rule::RightsUnused, rights_unused),
    (Rule::Leaked, leaked),
];

const UNSIGNALED: u32 = 0;

fn send_buffer_changed(twin: Twin) {
    let link = Link::new(Sizes::default());
    assert!(link.a.send(link.write(64), link.a.segment(0, 64)));
    if twin == Right {
        link.a.completion();
    }
    // SAFETY: the page is mapped.
    unsafe { link.a.page.write_volatile(7) };
    if twin == Wrong {
        link.a.completion();
    }
    link.close();
}

fn buffer_unmapped(twin: Twin) {
    let link = Link::new(Sizes::default());
    link.b.receive(3, link.b.segment(0, 64));
    let mut wr = link.write(64);
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
    assert!(link.a.send(wr, link.a.segment(0, 64)));
    link.a.completion();
    let unmap = || {
        // SAFETY: only the device still reads the page.
        assert_eq!(unsafe { libc::munmap(link.b.page.cast(), PAGE) }, 0);
    };
    if twin == Wrong {
        unmap();
    }
    link.b.completion();
    if twin == Right {
        unmap();
    }
    link.close();
}

fn deregistered_while_posted(twin: Twin) {
    let mut link = Link::new(Sizes::default());
    link.b.receive(3, link.b.segment(0, 64));
    if twin == Wrong {
        // SAFETY: alive.
        unsafe { link.verbs.ibv_dereg_mr(link.b.region) }.unwrap();
        link.b.region = std::ptr::null_mut();
    }
    link.close();
}

fn key_after_deregistration(twin: Twin) {
    let mut link = Link::new(Sizes::default());
    let segment = link.a.segment(0, 64);
    if twin == Wrong {
        // SAFETY: alive.
        unsafe { link.verbs.ibv_dereg_mr(link.a.region) }.unwrap();
        link.a.region = std::ptr::null_mut();
    }
    link.a.send(link.write(64), segment);
    link.close();
}

fn outside_region(twin: Twin) {
    let link = Link::new(Sizes::default());
    let len = if twin == Wrong { 128 } else { 64 };
    let at = PAGE as u64 - 64;
    link.a.send(link.write(len), link.a.segment(at, len));
    link.close();
}

fn not_writable(twin: Twin) {
    let access = match twin {
        Wrong => ibv_access_flags::NONE,
        Right => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
    };
    let link = Link::new(Sizes {
        access,
        ..Sizes::default()
    });
    link.a.receive(1, link.a.segment(0, 64));
    link.close();
}

fn local_protection(twin: Twin) {
    let link = Link::new(Sizes::default());
    let mut segment = link.a.segment(0, 64);
    if twin == Wrong {
        segment.lkey ^= 0x5a5a;
    }
    assert!(link.a.send(link.write(64), segment));
    link.a.completion();
    link.close();
}

fn remote_access(twin: Twin) {
    let link = Link::new(Sizes::default());
    let mut wr = link.write(64);
    if twin == Wrong {
        // SAFETY: a WRITE uses these fields.
        unsafe { wr.wr.rdma.rkey ^= 0x5a5a };
    }
    assert!(link.a.send(wr, link.a.segment(0, 64)));
    link.a.completion();
    link.close();
}

fn receives_overlap(twin: Twin) {
    let link = Link::new(Sizes::default());
    let stride = if twin == Wrong { 32 } else { 64 };
    for number in 0..4 {
        link.a.receive(number, link.a.segment(number * stride, 64));
    }
    link.close();
}

fn unsignaled_overflow(twin: Twin) {
    let link = Link::new(Sizes::default());
    for number in 0..40_u64 {
        let mut wr = link.write(64);
        let is_signaled = twin == Right && number % 8 == 7;
        if !is_signaled {
            wr.send_flags = UNSIGNALED;
        }
        let accepted = link.a.send(wr, link.a.segment(0, 64));
        if is_signaled {
            link.a.completion();
        }
        if !accepted {
            break;
        }
    }
    link.close();
}

fn send_queue_overflow(twin: Twin) {
    let link = Link::new(Sizes::default());
    for number in 0..40_u64 {
        let mut wr = link.write(64);
        wr.wr_id = number;
        // This device frees places as requests end, polled or not; other devices refuse the post until a poll.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !link.a.send(wr, link.a.segment(0, 64)) && std::time::Instant::now() < until {
            assert!(link.b.poll().is_none());
        }
        if twin == Right {
            link.a.completion();
        }
    }
    link.close();
}

fn receive_queue_overflow(twin: Twin) {
    const ROOM: u32 = 4;
    let mut link = Link::unconnected(Sizes::default());
    link.share_receives(ROOM);
    link.connect();
    let shared = link.shared.as_ref().unwrap();
    for number in 0..u64::from(ROOM) {
        assert!(shared.receive(number, link.b.segment(number * 64, 64)));
    }
    let mut wr = link.write(64);
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
    assert!(link.a.send(wr, link.a.segment(0, 64)));
    link.a.completion();
    if twin == Right {
        link.b.completion();
    }
    // This device has a place as soon as the message has arrived; others have none before the poll.
    assert!(shared.receive(4, link.b.segment(512, 64)));
    link.close();
}

fn cq_overrun(twin: Twin) {
    let link = Link::new(Sizes {
        completions: if twin == Wrong { 4 } else { 16 },
        ..Sizes::default()
    });
    for _ in 0..8 {
        link.a.send(link.write(64), link.a.segment(0, 64));
    }
    link.close();
}

fn post_in_error(twin: Twin) {
    let link = Link::new(Sizes::default());
    // A receive that is flushed because the program itself ends the connection has not failed.
    link.a.receive(9, link.a.segment(0, 64));
    if twin == Wrong {
        let mut wr = link.write(64);
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        // Larger than the room the peer has for it.
        link.b.receive(1, link.b.segment(0, 8));
        assert!(link.a.send(wr, link.a.segment(64, 64)));
        assert_ne!(link.a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    } else {
        link.to_error(&link.a);
        link.a.completion();
    }
    // The last request of a queue that is drained.
    link.a.send(link.write(64), link.a.segment(64, 64));
    link.close();
}

fn post_not_ready(twin: Twin) {
    let link = Link::unconnected(Sizes::default());
    link.to_init(&link.a);
    link.to_init(&link.b);
    link.to_rtr(&link.a, &link.b);
    link.to_rtr(&link.b, &link.a);
    if twin == Right {
        link.to_rts(&link.a);
    }
    link.a.send(link.write(64), link.a.segment(0, 64));
    link.close();
}

fn arm(link: &Link) {
    // SAFETY: alive.
    unsafe { ibv_req_notify_cq(link.a.queue, Notify::Next) }.unwrap();
}

fn take_event(link: &Link) {
    let (mut queue, mut own) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: alive.
    unsafe {
        link.verbs
            .ibv_get_cq_event(link.channel, &mut queue, &mut own)
    }
    .unwrap();
    assert_eq!(queue, link.a.queue);
}

fn acknowledge(link: &Link) {
    // SAFETY: the queue is alive, and an event was taken.
    unsafe { link.verbs.ibv_ack_cq_events(link.a.queue, 1) };
}

fn missed_event(twin: Twin) {
    let link = Link::new(Sizes::default());
    arm(&link);
    assert!(link.a.send(link.write(64), link.a.segment(0, 64)));
    take_event(&link);
    acknowledge(&link);
    link.a.completion();
    // The next request may end before or after the arming.
    link.a.receive(2, link.a.segment(128, 64));
    let reply = || {
        let mut wr = link.write(64);
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        assert!(link.b.send(wr, link.b.segment(0, 64)));
        link.b.completion();
    };
    arm(&link);
    if twin == Right {
        assert!(link.a.poll().is_none());
    }
    // Here it ends after the arming, so that the test ends.
    reply();
    take_event(&link);
    acknowledge(&link);
    link.a.completion();
    link.close();
}

fn events_unacknowledged(twin: Twin) {
    let link = Link::new(Sizes::default());
    arm(&link);
    assert!(link.a.send(link.write(64), link.a.segment(0, 64)));
    take_event(&link);
    link.a.completion();
    if twin == Wrong {
        // Destroying waits for this thread.
        let (verbs, pair, queue) = (link.verbs, link.a.pair, link.a.queue.expose_provenance());
        // SAFETY: alive.
        unsafe { verbs.ibv_destroy_qp(pair) }.unwrap();
        std::thread::spawn(move || {
            // SAFETY: the queue is alive; the call returns once the event is acknowledged.
            unsafe { verbs.ibv_destroy_cq(std::ptr::with_exposed_provenance_mut(queue)) }.unwrap();
        });
        // As a program that waits for ever is ended.
        std::thread::sleep(std::time::Duration::from_millis(200));
        std::process::exit(0);
    }
    acknowledge(&link);
    link.close();
}

fn after_fork(twin: Twin) {
    let link = Link::new(Sizes::default());
    // SAFETY: the child posts, which is its bug, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        if twin == Wrong {
            link.a.send(link.write(64), link.a.segment(0, 64));
        }
        // SAFETY: the child runs nothing of its parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    link.close();
}

fn same_buffer(twin: Twin) {
    let link = Link::new(Sizes::default());
    for number in 0..4 {
        let at = if twin == Wrong { 0 } else { number * 64 };
        link.a.receive(number, link.a.segment(at, 64));
    }
    link.close();
}

fn waits_forever(twin: Twin) {
    let link = Link::new(Sizes {
        rnr_retry: if twin == Wrong { 7 } else { 1 },
        ..Sizes::default()
    });
    // The peer has no receive.
    let mut wr = link.write(64);
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
    assert!(link.a.send(wr, link.a.segment(0, 64)));
    if twin == Wrong {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(9);
        while std::time::Instant::now() < until {
            assert!(link.a.poll().is_none());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    } else {
        link.a.completion();
    }
    link.close();
}

fn completions_unpolled(twin: Twin) {
    let link = Link::new(Sizes::default());
    assert!(link.a.send(link.write(64), link.a.segment(0, 64)));
    if twin == Right {
        link.a.completion();
        link.close();
    }
    let _unused = page();
    // SAFETY: the program ends, and runs what it registered for that.
    unsafe { libc::exit(0) };
}

fn rights_unused(twin: Twin) {
    let link = Link::new(Sizes::default());
    let (local, peers) = (
        ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
        match twin {
            // No queue pair permits this.
            Wrong => ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            Right => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        },
    );
    // SAFETY: the page stays mapped, and the region ends before its domain.
    unsafe {
        let region = link
            .verbs
            .reg_mr(link.domain, page().cast(), PAGE, local | peers);
        link.verbs.ibv_dereg_mr(region.unwrap().as_ptr()).unwrap();
    }
    link.close();
}

fn leaked(twin: Twin) {
    let link = Link::new(Sizes::default());
    if twin == Right {
        link.close();
    }
}
