//! The rules, each with its source and remedy.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How serious a violation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Correct programs may do it, too, but it deserves a look.
    Note,
    /// Not allowed, and fails on some device or at some time.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Note => "note",
            Self::Error => "error",
        })
    }
}

/// Declares the rules.
macro_rules! rules {
    ($(
        $name:ident $id:literal $severity:ident: $title:literal
            why $why:literal
            source $source:literal
            remedy $remedy:literal;
    )*) => {
        /// A rule that verbs programs must keep.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rule {
            $(
                #[doc = concat!("`", $id, "`: ", $title, ".")]
                $name,
            )*
        }

        impl Rule {
            /// All rules, errors first.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the name used in reports and suppressions.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$name => $id),* }
            }

            /// Returns what the program did.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// Returns why that is wrong.
            pub const fn why(self) -> &'static str {
                match self { $(Self::$name => $why),* }
            }

            /// Returns the document that states the rule.
            pub const fn source(self) -> &'static str {
                match self { $(Self::$name => $source),* }
            }

            /// Returns what to change.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy),* }
            }

            /// Returns how serious a violation is.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),* }
            }
        }
    };
}

rules! {
    SendBufferChanged "send-buffer-changed" Error:
        "a send buffer changed before its completion was polled"
        why "the device may read the buffer at any time until then, and again if a packet is lost, so the \
             peer may receive old bytes, new bytes or a mixture"
        source "ibv_post_send(3): \"The buffers used by a WR can only be safely reused after WR the request \
                is fully executed and a work completion has been retrieved from the corresponding completion \
                queue (CQ).\"; IBTA vol. 1, 10.8 (work request processing)"
        remedy "before writing to the buffer, poll the completion of this request, or of a later signaled \
                request of the same queue pair; small data can be posted with IBV_SEND_INLINE";
    BufferUnmapped "buffer-unmapped" Error:
        "a request's memory was unmapped before its completion was polled"
        why "the device keeps using pages that the process no longer owns, or fails the request"
        source "ibv_post_send(3) and ibv_post_recv(3): buffers are the device's until the completion; \
                ibv_reg_mr(3)"
        remedy "poll the completion, then deregister the region, then unmap or free the memory";
    DeregisteredWhilePosted "deregistered-while-posted" Error:
        "a memory region was deregistered while a request used it"
        why "the request fails with a protection error if the device has not finished it, and a write from \
             the peer that arrives later fails the queue pair"
        source "ibv_dereg_mr(3), ibv_post_send(3); IBTA vol. 1, 10.6 (memory management)"
        remedy "first poll the completions of all requests that name the region, or destroy the queue pair";
    KeyAfterDeregistration "key-after-deregistration" Error:
        "a request names a local key that was deregistered"
        why "the key may belong to another region by now, and the device then uses that region's memory"
        source "ibv_dereg_mr(3); IBTA vol. 1, 10.6 (memory management)"
        remedy "keep the region registered until the last request completes, or register the memory again and \
                use the new key";
    OutsideRegion "outside-region" Error:
        "a segment is not inside the region of its key"
        why "the device fails the request with IBV_WC_LOC_PROT_ERR when it reaches these bytes"
        source "ibv_reg_mr(3); IBTA vol. 1, 10.6 (memory management)"
        remedy "compare the segment's address and length with the arguments of ibv_reg_mr; with \
                ibv_reg_mr_iova, addresses in requests start at iova";
    NotWritable "not-writable" Error:
        "the device must write to a region without IBV_ACCESS_LOCAL_WRITE"
        why "receives, READs and atomics whose buffers are in such a region fail with IBV_WC_LOC_PROT_ERR"
        source "ibv_reg_mr(3): \"Local read access is always enabled for the MR\", local write is not"
        remedy "register the region with IBV_ACCESS_LOCAL_WRITE";
    LocalProtection "local-protection" Error:
        "the device refused access to a request's own memory"
        why "the key does not allow the access, or was guessed, or belongs to another device, protection \
             domain or region"
        source "ibv_poll_cq(3), IBV_WC_LOC_PROT_ERR; IBTA vol. 1, 10.10 (error handling)"
        remedy "use mr->lkey of a region in the queue pair's protection domain";
    RemoteAccess "remote-access" Error:
        "the peer's device refused the remote key or address"
        why "the key was guessed, is no longer registered, or does not allow the operation or the range"
        source "ibv_poll_cq(3), IBV_WC_REM_ACCESS_ERR; IBTA vol. 1, 10.10 (error handling)"
        remedy "send rkey, address and length to the peer after registering, and do not deregister before the \
                peer says that it has finished";
    ReceivesOverlap "receives-overlap" Error:
        "buffers that the device writes to overlap partially"
        why "the later message overwrites bytes of the earlier message, and their order is not defined"
        source "ibv_post_recv(3): a buffer is the device's until its completion; IBTA vol. 1, 9.5 (ordering)"
        remedy "give each outstanding receive or READ its own bytes; a common cause is a stride that is \
                shorter than the segment's length";
    UnsignaledOverflow "unsignaled-overflow" Error:
        "the send queue is full of unsignaled requests"
        why "an entry of the queue becomes free only when a completion of that request or of a later request \
             is polled; such a completion never arrives, so every later post fails"
        source "ibv_create_qp(3), sq_sig_all; IBTA vol. 1, 10.8.6 (unsignaled completions)"
        remedy "set IBV_SEND_SIGNALED on at least one of every max_send_wr requests, and poll";
    SendQueueOverflow "send-queue-overflow" Error:
        "more requests are outstanding than the send queue holds"
        why "without polling a completion, the program cannot know that an entry is free; other devices \
             refuse the post with ENOMEM"
        source "ibv_create_qp(3), cap.max_send_wr; IBTA vol. 1, 10.8 (work request processing)"
        remedy "count the requests that are posted but not yet polled, and keep the count within the \
                cap.max_send_wr that ibv_create_qp returned";
    ReceiveQueueOverflow "receive-queue-overflow" Error:
        "more receives are outstanding than the receive queue holds, shared or not"
        why "an entry becomes free when the completion is polled, not when the message arrives; other devices \
             refuse the post with ENOMEM, and messages find no receive"
        source "ibv_create_srq(3), attr.max_wr; ibv_create_qp(3), cap.max_recv_wr; IBTA vol. 1, 10.8 (work request \
                processing)"
        remedy "post a receive again only after polling its completion, or create a queue large enough for \
                all receives that can be outstanding";
    CqOverrun "cq-overrun" Error:
        "signaled requests can overrun their completion queue"
        why "if more completions arrive than the queue holds before the program polls, the queue fails \
             together with all its queue pairs (IBV_EVENT_CQ_ERR)"
        source "ibv_create_cq(3); ibv_get_async_event(3), IBV_EVENT_CQ_ERR: CQ overrun"
        remedy "create a completion queue large enough for all requests that can be outstanding at once, or \
                poll before posting more";
    PostInError "post-in-error" Error:
        "requests are posted to a queue pair after one of its requests failed"
        why "the queue pair is in the error state: requests that are posted to it are flushed and never sent"
        source "ibv_modify_qp(3); IBTA vol. 1, 10.3.1 (states of queue pairs)"
        remedy "check wc.status of every completion; reset the queue pair and connect it again, or destroy it";
    PostNotReady "post-not-ready" Error:
        "requests are posted in a state that does not process them"
        why "some devices refuse the post, others accept it and lose the request"
        source "ibv_modify_qp(3); IBTA vol. 1, 10.3.1 (states of queue pairs)"
        remedy "post receives from INIT on, and sends from RTS on";
    MissedEvent "missed-event" Error:
        "the program waits for an event without polling after requesting it"
        why "a completion that arrived before ibv_req_notify_cq raises no event: if it was the last, the \
             program waits forever"
        source "ibv_get_cq_event(3), example; ibv_req_notify_cq(3)"
        remedy "call ibv_req_notify_cq first, then poll until the queue is empty, then wait";
    EventsUnacknowledged "events-unacknowledged" Error:
        "a completion queue is destroyed while some of its events are unacknowledged"
        why "ibv_destroy_cq waits for the acknowledgement, and never returns if its own thread should have \
             given it"
        source "ibv_get_cq_event(3): \"All completion events returned by ibv_get_cq_event() must eventually be \
                acknowledged with ibv_ack_cq_events(). To avoid races, destroying a CQ will wait\""
        remedy "call ibv_ack_cq_events for every received event before ibv_destroy_cq";
    AfterFork "after-fork" Error:
        "a forked child uses a device of its parent"
        why "the child does not have the device's mappings, and shares file descriptors with the parent"
        source "ibv_fork_init(3) keeps the memory of the parent right, and gives the child no device"
        remedy "open the device in the child, or call exec";
    SameBuffer "same-buffer" Note:
        "several outstanding receives or READs have the same buffer"
        why "each message overwrites the previous one, which is correct only if the data is not read"
        source "ibv_post_recv(3); IBTA vol. 1, 9.5 (ordering)"
        remedy "give each its own bytes, unless the data is not used";
    WaitsForever "waits-forever" Note:
        "a request did not progress for 5 s, and its queue pair never gives up"
        why "with timeout 0 or rnr_retry 7 the queue pair retries forever, so a peer that has gone away or \
             posts no receive is never noticed"
        source "ibv_modify_qp(3), attr.timeout and attr.rnr_retry; IBTA vol. 1, 9.7.5.2.8 (RNR NAK)"
        remedy "use timeout 14 and retry_cnt 7, as rdma_cm does, and an rnr_retry below 7";
    CompletionsUnpolled "completions-unpolled" Note:
        "the program ended without polling the completions of signaled requests"
        why "the program never checked whether they failed"
        source "ibv_poll_cq(3)"
        remedy "poll all completions before exiting";
    RightsUnused "rights-unused" Note:
        "regions have access rights that nothing in the process can use"
        why "a peer that has or guesses the key may do more than the program ever needs"
        source "ibv_reg_mr(3), access; ibv_modify_qp(3), qp_access_flags: a queue pair permits a peer's READs, WRITEs \
                and atomics, or refuses them whatever the region allows"
        remedy "register only the access rights that receives, READs and peers need";
    Leaked "leaked" Note:
        "objects were not destroyed when the program ended"
        why "the kernel frees them when the process ends, but a library that is loaded repeatedly accumulates \
             them"
        source "ibv_close_device(3): it does not release objects of the context"
        remedy "destroy queue pairs, regions and queues before ibv_close_device";
}

impl Rule {
    /// Returns the rule with this name.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.id() == id)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.id())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        Self::from_id(&id).ok_or_else(|| de::Error::custom(format!("{id} is not a rule")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_name_of_its_own_and_errors_come_first() {
        for rule in Rule::ALL {
            assert_eq!(Rule::from_id(rule.id()), Some(*rule));
            assert!(!rule.source().is_empty() && !rule.remedy().is_empty());
        }
        assert!(Rule::ALL.is_sorted_by_key(|rule| std::cmp::Reverse(rule.severity())));
    }
}
