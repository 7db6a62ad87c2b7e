//! Completion queues: creation, notification, destruction.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use gdr_nic::{self as nic, Completion, WcStatus};
use gdr_verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};

use crate::channel::Channel;
use crate::context::Context;
use crate::device::Device;
use crate::domain::{Use, Users, next_handle};
use crate::errno::Errno;
use crate::event::Subject;
use crate::event_queue::{ASYNC_EVENTS, COMPLETION_EVENTS, EventQueue, Unacknowledged};
use crate::ret::{pointer, status};
use crate::section::{self, Section};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// The most completions of a queue.
pub(crate) const MOST_ENTRIES: c_int = 1 << 22;

/// A completion queue.
pub(crate) struct Queue {
    object: CObject<ibv_cq_ex>,
    context: Arc<Context>,
    queue: nic::CompletionQueue,
    channel: Option<(Arc<Channel>, Use)>,
    notifier: Arc<Notifier>,
    unacknowledged_completions: Arc<Unacknowledged>,
    unacknowledged: Arc<Unacknowledged>,
    users: Users,
    /// From `ibv_start_poll` to `ibv_end_poll`: the completion that the functions between them read.
    polling: Section<Option<Completion>>,
    /// The parent domain that it was made in.
    _parent: Option<Use>,
}

pub(crate) static QUEUES: Table<Queue> = Table::new();

/// Announces completions to a channel. It holds no engine, as the hook of an engine holds it.
struct Notifier {
    /// What is announced; one of the constants below.
    armed: AtomicU8,
    /// The address of the queue's structure.
    queue: usize,
    events: Arc<EventQueue<usize>>,
}

const NOTHING: u8 = 0;
const ANY: u8 = 1;
const SOLICITED: u8 = 2;

impl Notifier {
    /// Runs while the engine is locked.
    fn completed(&self, completion: &Completion) -> nic::Announcement {
        // The completion was stored before this fence, and the program polls after it has armed the queue.
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        let wanted = match armed {
            NOTHING => false,
            SOLICITED => completion.solicited || completion.status != WcStatus::Success,
            _ => true,
        };
        if wanted && self.armed.swap(NOTHING, Ordering::AcqRel) != NOTHING {
            self.events.push(self.queue);
            return nic::Announcement::Sent;
        }
        nic::Announcement::None
    }

    fn arm(&self, what: u8) {
        // ANY includes solicited completions.
        let stronger = |armed| (armed != ANY).then_some(what);
        let _ = self
            .armed
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, stronger);
        fence(Ordering::SeqCst);
    }
}

impl Queue {
    pub(crate) fn of(cq: *mut ibv_cq) -> Result<Arc<Self>, Errno> {
        QUEUES.get(cq)
    }

    pub(crate) fn device(&self) -> &Device {
        self.context.device()
    }

    /// Makes a queue, and fills its structure in by `fill`.
    pub(crate) fn create(
        context: *mut ibv_context,
        entries: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
        pollers: section::Users,
        parent: Option<Use>,
    ) -> Result<Arc<Self>, Errno> {
        let context = Context::of(context)?;
        let vectors = 0..1;
        if !(1..=MOST_ENTRIES).contains(&entries) || !vectors.contains(&comp_vector) {
            return Err(Errno::INVAL);
        }
        let channel = match channel.is_null() {
            true => None,
            false => Some(Channel::of(channel)?),
        };
        if channel
            .as_ref()
            .is_some_and(|channel| !channel.is_of(&context))
        {
            return Err(Errno::INVAL);
        }
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let object = unsafe {
            CObject::<ibv_cq_ex>::new(|cq| {
                cq.context = context.as_ptr();
                cq.cq_context = cq_context;
                cq.handle = next_handle();
                cq.cqe = entries;
                if let Some(channel) = &channel {
                    cq.channel = channel.as_ptr();
                }
            })
        };
        let address = object.as_ptr().expose_provenance();
        let notifier = Arc::new(Notifier {
            armed: AtomicU8::new(NOTHING),
            queue: address,
            events: match &channel {
                Some(channel) => Arc::clone(channel.events()),
                // The queue can never be armed, so this is never used.
                None => Arc::new(EventQueue::new()?),
            },
        });
        let on_completion = channel.as_ref().map(|_| {
            let notifier = Arc::clone(&notifier);
            let hook = move |completion: &Completion| notifier.completed(completion);
            Box::new(hook) as nic::OnCompletion
        });
        let queue = context
            .engine()?
            .completion_queue(entries as usize, on_completion);
        let channel = channel.map(|channel| {
            let used = channel.users().add();
            (channel, used)
        });
        let cq = object.as_ptr();
        // SAFETY: computes addresses in the structure.
        let completed = unsafe {
            let completions = &raw mut (*cq).comp_events_completed;
            [completions, &raw mut (*cq).async_events_completed]
        };
        // SAFETY: fields of the structure.
        let [completions, asynchronous] =
            completed.map(|field| Arc::new(unsafe { Unacknowledged::new(field) }));
        let created = Arc::new(Self {
            object,
            context,
            queue,
            channel,
            notifier,
            unacknowledged_completions: completions,
            unacknowledged: asynchronous,
            users: Users::default(),
            polling: Section::new(pollers),
            _parent: parent,
        });
        let unacknowledged = [
            (&ASYNC_EVENTS, &created.unacknowledged),
            (&COMPLETION_EVENTS, &created.unacknowledged_completions),
        ];
        for (table, events) in unacknowledged {
            table.insert(created.as_ptr(), Arc::clone(events));
        }
        let subject = Subject::Queue(address, Arc::clone(&created.unacknowledged));
        let context = &created.context;
        let owners = context.device().owners();
        owners.add_queue(created.queue.number(), subject, context.events());
        QUEUES.insert(created.as_ptr(), Arc::clone(&created));
        Ok(created)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.object.as_ptr().cast()
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn nic(&self) -> &nic::CompletionQueue {
        &self.queue
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    pub(crate) fn unacknowledged_completions(&self) -> &Unacknowledged {
        &self.unacknowledged_completions
    }

    pub(crate) fn polling(&self) -> &Section<Option<Completion>> {
        &self.polling
    }

    /// Its handle is gone: no thread waits for it, and no event of it comes any more.
    pub(crate) fn leave(&self) {
        self.polling.close();
        let owners = self.context.device().owners();
        owners.remove_queue(self.queue.number());
        let address = self.as_ptr().addr();
        if let Some((channel, _)) = &self.channel {
            channel.events().forget(|of| *of == address);
        }
        let events = self.context.events();
        events.forget(|event| event.is_about(address));
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let is_of_own = is_own(context) || is_own(channel);
    forward!(unless is_of_own, ibv_create_cq(context, entries, cq_context, channel, comp_vector));
    pointer(|| {
        let pollers = section::Users::AnyThread;
        let queue = Queue::create(
            context,
            entries,
            cq_context,
            channel,
            comp_vector,
            pollers,
            None,
        )?;
        Ok(queue.as_ptr())
    })
}

/// Announces the next completion, or the next one that is solicited or failed, to the channel.
pub(crate) extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        let queue = Queue::of(cq)?;
        if queue.channel.is_none() {
            return Ok(());
        }
        let what = if solicited_only == 0 { ANY } else { SOLICITED };
        queue.notifier.arm(what);
        // The program is about to wait on the channel.
        queue.queue.device().leave_to_thread();
        Ok(())
    })
}

impl Drop for Queue {
    fn drop(&mut self) {
        let owners = self.context.device().owners();
        owners.remove_queue(self.queue.number());
        for table in [&ASYNC_EVENTS, &COMPLETION_EVENTS] {
            // An error means that creation failed before the entry existed.
            let _ = table.remove(self.as_ptr());
        }
    }
}

/// Changes how many completions a queue holds.
///
/// # Safety
/// `cq` is a queue that is not destroyed meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    forward!(unless is_own(cq), ibv_resize_cq(cq, entries));
    status(|| {
        let queue = Queue::of(cq)?;
        if !(1..=MOST_ENTRIES).contains(&entries) {
            return Err(Errno::INVAL);
        }
        if !queue.queue.resize(entries as usize) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the contract of this function.
        unsafe { (*cq).cqe = entries };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    forward!(unless is_own(cq), ibv_destroy_cq(cq));
    status(|| {
        let queue = Queue::of(cq)?;
        queue.users.check_unused()?;
        QUEUES.remove(cq)?;
        queue.leave();
        queue.unacknowledged_completions.wait();
        queue.unacknowledged.wait();
        Ok(())
    })
}
