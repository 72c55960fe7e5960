//! One completion channel for the queues of many connections.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rpma_mr::sys::ProcessMark;
use rpma_mr::sys::owned::{CompChannel, EventChannel};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::asynchronous::{Waitable, Watch, Watched};
use crate::awaited::{Awaited, wait_at};
use crate::completion::Completion;
use crate::conn_cfg::ConnCfg;
use crate::cq::{CqError, CqRole, both};
use crate::link::{Link, lock};
use crate::peer::Peer;
use crate::wait::{Flag, Wait, any_of};
use crate::waiters::{NO_TASK, Waiters};

/// Waits for the completions of many connections at once, whose queues are on one completion channel.
///
/// A connection made with [`ConnCfg::dispatcher`] is waited for here, and cannot be waited for alone
/// ([`CqError::HasDispatcher`]); polling its queues and waiting for its events is as ever. The connections take turns, so that none waits
/// behind a busy one. Several threads and tasks ([`Async`](crate::Async)) may wait; each completion goes to one of them.
///
/// Watches the connections too: when a peer dies, everything posted to its connection completes with an error.
///
/// A shared receive queue with a completion queue of its own is waited for there: [`Srq::rcq`](crate::Srq::rcq).
///
/// Cloning is cheap and gives another handle on the same dispatcher. Its connections need none; they may be dropped in any order.
///
/// ```
/// use rpma::{CqError, Dispatched, Dispatcher, prelude::*};
/// use std::collections::HashMap;
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let dispatcher = Dispatcher::new(&peer)?;
/// let cfg = ConnCfg::new().dispatcher(&dispatcher);
/// let mut conns = HashMap::new();
/// for _ in 0..3 {
/// #   let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
///     let pending = endpoint.next_conn_req(&cfg, Duration::from_secs(10))?.connect(&[])?;
/// #   let client = client.established(Duration::from_secs(10))?;
///     let conn = pending.established(Duration::from_secs(10))?;
///     conn.recv(LocalSlice::null(), 7)?;
///     conns.insert(conn.qp_num(), conn);
/// #   client.send(LocalSlice::null(), Signal::Always, 0)?;
/// #   client.cq().wait(Duration::from_secs(10))?;
/// }
/// // Each peer sends a message, and goes.
/// let mut messages = 0;
/// while !conns.is_empty() {
///     let Dispatched { qp_num, found } = dispatcher.wait(Duration::from_secs(10))?;
///     match found {
///         Ok((_, completion)) => messages += completion.context(),
///         Err(CqError::Drained) => drop(conns.remove(&qp_num)),
///         Err(e) => return Err(e.into()),
///     }
/// }
/// assert_eq!(messages, 3 * 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Dispatcher(Arc<Inner>);

struct Inner {
    channel: Arc<CompChannel>,
    /// Readable while the channel or a connection has an event, or something is due: an `epoll(7)` instance, with the numbers of
    /// connections.
    events: OwnedFd,
    members: Mutex<Members>,
    waiters: Arc<Waiters>,
}

/// The number that the completion channel has in `events`, where connections have theirs.
const CHANNEL: u64 = 0;
/// The number of the flag there.
const DUE: u64 = 1;

/// Its connections.
struct Members {
    /// Readable while something is due, for who waits for the descriptor alone; for ever once closed.
    flag: Flag,
    is_flagged: bool,
    closed: bool,
    last: u64,
    by_number: BTreeMap<u64, Entry>,
    by_queue: HashMap<usize, u64>,
    /// Those that there may be something of, each once. All others are armed.
    due: VecDeque<u64>,
    /// How often somebody looked.
    looks: u32,
    /// There may be events that could not be taken: the descriptor became readable by them, and may not do so again.
    unread: bool,
}

struct Entry {
    link: Weak<Link>,
    is_due: bool,
    /// Why its events could not be read, which is to be told. They are read again then.
    failure: Option<io::Error>,
    /// That it is drained was told.
    end_told: bool,
}

/// Whose turn it is.
struct Due {
    number: u64,
    link: Arc<Link>,
    failure: Option<io::Error>,
}

impl Members {
    fn new(flag: Flag) -> Self {
        let (by_number, by_queue, due) = (BTreeMap::new(), HashMap::new(), VecDeque::new());
        Self { flag, is_flagged: false, closed: false, last: DUE, by_number, by_queue, due, looks: 0, unread: false }
    }

    /// Once for as long as something is due: a busy dispatcher makes no system call by it.
    fn set_flag(&mut self) {
        if !std::mem::replace(&mut self.is_flagged, true) {
            self.flag.set();
        }
    }

    fn set_due(&mut self, number: u64) {
        if let Some(entry) = self.by_number.get_mut(&number)
            && !entry.is_due
        {
            entry.is_due = true;
            self.due.push_back(number);
            self.set_flag();
        }
    }

    /// The events of a connection cannot be read.
    fn fail(&mut self, number: u64, failure: io::Error) {
        if let Some(entry) = self.by_number.get_mut(&number) {
            entry.failure = Some(failure);
            self.set_due(number);
        }
    }

    /// Whether it is time to take events although something is due: those that are armed would wait behind the busy ones. Or without
    /// waiting for the descriptor.
    fn is_stale(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        std::mem::take(&mut self.unread) || self.looks.is_multiple_of(32)
    }

    /// Clears the flag if there is none.
    fn next_due(&mut self) -> Option<Due> {
        while let Some(number) = self.due.pop_front() {
            if let Some(entry) = self.by_number.get_mut(&number) {
                entry.is_due = false;
                if let Some(link) = entry.link.upgrade() {
                    return Some(Due { number, link, failure: entry.failure.take() });
                }
            }
        }
        if self.is_flagged && !self.closed {
            self.is_flagged = false;
            self.flag.clear();
        }
        None
    }

    fn link(&self, number: u64) -> Option<Arc<Link>> {
        self.by_number.get(&number)?.link.upgrade()
    }

    /// Whether the end of a connection is told for the first time.
    fn tells_end(&mut self, number: u64) -> bool {
        self.by_number.get_mut(&number).is_some_and(|entry| !std::mem::replace(&mut entry.end_told, true))
    }
}

/// What a dispatcher found.
///
/// ```
/// use rpma::{CqRole, Dispatcher, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// let dispatcher = Dispatcher::new(&peer)?;
/// let cfg = ConnCfg::new().rcq_size(10).dispatcher(&dispatcher);
/// # let (conn, client) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// conn.recv(LocalSlice::null(), 7)?;
/// # client.send(LocalSlice::null(), Signal::OnError, 0)?; // the peer's message
/// let dispatched = dispatcher.wait(Duration::from_secs(10))?;
/// assert_eq!(dispatched.qp_num, conn.qp_num());
/// let (role, completion) = dispatched.found?;
/// assert_eq!((role, completion.context()), (CqRole::Receive, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Dispatched {
    /// The number of the queue pair: at which connection.
    pub qp_num: u32,
    /// A completion, and in which queue it was. Or why that connection has none: [`CqError::Drained`], once, when it has ended and nothing
    /// is outstanding; [`CqError::Wait`] when its events cannot be read, and the provider's refusals, again and again until they can be
    /// or the connection is dropped.
    pub found: Result<(CqRole, Completion), CqError>,
}

impl Dispatcher {
    /// Makes a dispatcher for connections on the device of `peer`.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn new(peer: &Peer) -> io::Result<Self> {
        let channel = CompChannel::create(peer.device().context())?;
        let flag = Flag::new()?;
        Ok(Self(Arc::new(Inner {
            // `CHANNEL` and `DUE`: numbers in this order.
            events: any_of(&[channel.as_fd(), flag.as_fd()])?,
            channel,
            members: Mutex::new(Members::new(flag)),
            waiters: Arc::new(Waiters::new()?),
        })))
    }

    /// Waits for a completion of any of its connections, and takes it.
    ///
    /// # Errors
    ///
    /// [`CqError::NoCompletion`] when the time is over, [`CqError::Closed`] when it is closed, [`CqError::Wait`], and [`CqError::Provider`]
    /// in a forked child. What is wrong with one connection is in [`Dispatched::found`].
    pub fn wait(&self, wait: impl Into<Wait>) -> Result<Dispatched, CqError> {
        match wait_at(self, wait.into()) {
            // Only the events say which connections to look at, and who had no time to wait has taken none.
            Err(CqError::NoCompletion) => {
                self.refresh(NO_TASK)?;
                self.look(NO_TASK)?.ok_or(CqError::NoCompletion)
            }
            found => found,
        }
    }

    /// Wakes everybody who waits, now and from now on. Its connections go on.
    ///
    /// ```
    /// use rpma::{CqError, Dispatcher, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let dispatcher = Dispatcher::new(&peer)?;
    /// let waiting = std::thread::spawn({
    ///     let dispatcher = dispatcher.clone();
    ///     move || dispatcher.wait(Wait::Forever).map(|found| found.qp_num)
    /// });
    /// dispatcher.close();
    /// assert!(matches!(waiting.join(), Ok(Err(CqError::Closed))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        // In a forked child there is nobody to wake, and the lock may be held for ever by a thread that only the parent has.
        if self.check_process().is_err() {
            return;
        }
        let mut members = lock(&self.0.members);
        members.closed = true;
        members.set_flag();
        drop(members);
        self.0.waiters.wake();
    }

    pub(crate) fn channel(&self) -> &Arc<CompChannel> {
        &self.0.channel
    }

    /// A place for a connection with these queues, which are on the channel, and these events.
    pub(crate) fn admit(&self, queues: impl Iterator<Item = usize>, events: &Arc<EventChannel>) -> io::Result<Member> {
        let mut members = lock(&self.0.members);
        let number = members.last + 1;
        epoll::add(&self.0.events, events, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        members.last = number;
        members.by_number.insert(number, Entry { link: Weak::new(), is_due: false, failure: None, end_told: false });
        let queues: Vec<_> = queues.collect();
        members.by_queue.extend(queues.iter().map(|queue| (*queue, number)));
        drop(members);
        Ok(Member { dispatcher: self.clone(), number, queues, events: Arc::clone(events), mark: ProcessMark::current() })
    }

    /// There may be more of it, for whoever looks next.
    fn set_due(&self, number: u64, task: u64) {
        lock(&self.0.members).set_due(number);
        self.0.waiters.wake_others(task);
    }

    /// Takes the events that are there, and wakes who waited for them.
    fn refresh(&self, task: u64) -> Result<(), CqError> {
        let taken = self.take_events();
        self.0.waiters.wake_others(task);
        taken.map(drop).map_err(CqError::Wait)
    }

    fn take_all_events(&self) -> io::Result<()> {
        const AT_ONCE: usize = 64;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut result = Ok(());
        let mut ready: Vec<epoll::Event> = Vec::with_capacity(AT_ONCE);
        // What is still readable after its turn, because it cannot be read or more has come, gets another one behind the others only.
        let all = lock(&self.0.members).by_number.len() + 2;
        for _ in 0..all.div_ceil(AT_ONCE) {
            ready.clear();
            epoll::wait(&self.0.events, spare_capacity(&mut ready), Some(&now))?;
            for event in &ready {
                if let Err(e) = self.take_events_of(event.data.u64()) {
                    result = Err(e);
                }
            }
            if ready.len() < AT_ONCE {
                break;
            }
        }
        result
    }

    fn take_events_of(&self, number: u64) -> io::Result<()> {
        match number {
            CHANNEL => {
                let mut fired = Vec::new();
                let result = self.0.channel.take_fired(&mut fired);
                let mut members = lock(&self.0.members);
                for queue in fired {
                    if let Some(&number) = members.by_queue.get(&queue) {
                        members.set_due(number);
                    }
                }
                result
            }
            DUE => Ok(()),
            number => {
                let link = lock(&self.0.members).link(number);
                if let Some(link) = link {
                    self.read_events_of(number, &link);
                }
                Ok(())
            }
        }
    }

    /// If there is the end among them, the connection makes itself due.
    fn read_events_of(&self, number: u64, link: &Link) {
        if let Err(e) = link.pump() {
            lock(&self.0.members).fail(number, e);
        }
    }
}

impl Awaited for Dispatcher {
    type Found = Dispatched;

    fn waiters(&self) -> &Waiters {
        &self.0.waiters
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.0.events.as_fd()]
    }

    fn check_process(&self) -> Result<(), CqError> {
        self.0.channel.check_process().map_err(CqError::Provider)
    }

    /// Something of a connection that is due.
    fn look(&self, task: u64) -> Result<Option<Dispatched>, CqError> {
        loop {
            let mut members = lock(&self.0.members);
            if members.closed {
                return Err(CqError::Closed);
            }
            let stale = members.is_stale();
            drop(members);
            if stale {
                self.refresh(task)?;
            }
            // On its own: the last handle on a connection may be this one, and its end takes the lock.
            let due = lock(&self.0.members).next_due();
            let Some(Due { number, link, failure }) = due else { return Ok(None) };
            if let Some(failure) = failure {
                self.read_events_of(number, &link);
                self.set_due(number, task);
                return Ok(Some(Dispatched { qp_num: link.qp.number(), found: Err(CqError::Wait(failure)) }));
            }
            let found = match look_at(&link) {
                Ok(None) => continue,
                Err(CqError::Drained) => {
                    if !lock(&self.0.members).tells_end(number) {
                        continue;
                    }
                    Err(CqError::Drained)
                }
                Ok(Some(found)) => {
                    self.set_due(number, task);
                    Ok(found)
                }
                Err(e) => {
                    self.set_due(number, task);
                    Err(e)
                }
            };
            return Ok(Some(Dispatched { qp_num: link.qp.number(), found }));
        }
    }

    /// Looking at a connection arms it.
    fn arm(&self) -> io::Result<()> {
        Ok(())
    }

    /// Of queues, which are due then, and of connections. All of them, whatever fails meanwhile: some runtimes tell a task of the descriptor
    /// only when it becomes readable.
    fn take_events(&self) -> io::Result<bool> {
        let taken = self.take_all_events();
        if taken.is_err() {
            lock(&self.0.members).unread = true;
        }
        taken.map(|()| true)
    }
}

/// Looks for something in the queues of a connection, and arms them if there is nothing.
fn look_at(link: &Arc<Link>) -> Result<Option<(CqRole, Completion)>, CqError> {
    let queues = both(link);
    match queues.look(NO_TASK) {
        Ok(None) | Err(CqError::Drained) => {
            queues.arm().map_err(CqError::Provider)?;
            queues.look(NO_TASK)
        }
        found => found,
    }
}

/// The place of a connection at its dispatcher, until it is dropped.
pub(crate) struct Member {
    dispatcher: Dispatcher,
    number: u64,
    queues: Vec<usize>,
    events: Arc<EventChannel>,
    mark: ProcessMark,
}

impl Member {
    /// The connection takes its place; it is looked at for the first time, and armed by that.
    pub(crate) fn present(&self, link: &Arc<Link>) {
        if let Some(entry) = lock(&self.dispatcher.0.members).by_number.get_mut(&self.number) {
            entry.link = Arc::downgrade(link);
        }
        // An event from before this was passed over: nobody knew whose it was.
        self.dispatcher.read_events_of(self.number, link);
        self.is_due();
    }

    /// There may be something to tell of the connection.
    pub(crate) fn is_due(&self) {
        // In a forked child, the lock may be held for ever by a thread that only the parent has.
        if !self.mark.is_current() {
            return;
        }
        lock(&self.dispatcher.0.members).set_due(self.number);
        self.dispatcher.0.waiters.wake();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // In a forked child, the lock may be held for ever by a thread that only the parent has, and the epoll instance is the parent's.
        if !self.mark.is_current() {
            return;
        }
        if let Err(e) = epoll::delete(&self.dispatcher.0.events, &self.events) {
            log::warn!("a connection's events cannot be taken off its dispatcher: {e}");
        }
        let mut members = lock(&self.dispatcher.0.members);
        members.by_number.remove(&self.number);
        for queue in &self.queues {
            members.by_queue.remove(queue);
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ConnCfg {
    /// The dispatcher that waits for the completions of the connection. It is on the connection's device. Both completion queues are on
    /// its channel then, whatever [`shared_channel`](Self::shared_channel) says.
    ///
    /// These parameters hold the dispatcher, and so do the connections made with them.
    ///
    /// ```
    /// use rpma::{CqError, Dispatcher, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let dispatcher = Dispatcher::new(&peer)?;
    /// let cfg = ConnCfg::new().dispatcher(&dispatcher);
    /// assert!(cfg.get_dispatcher().is_some());
    /// # let (conn, _client) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// assert!(matches!(conn.cq().wait(Wait::Now), Err(CqError::HasDispatcher))); // it is waited for there
    /// assert!(matches!(dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dispatcher(mut self, dispatcher: &Dispatcher) -> Self {
        self.dispatcher = Some(dispatcher.clone());
        self
    }

    /// What was set.
    #[must_use]
    pub fn get_dispatcher(&self) -> Option<&Dispatcher> {
        self.dispatcher.as_ref()
    }
}

impl AsFd for Dispatcher {
    /// Readable while there may be something to tell: an event of a connection or of its queues, a connection that has come, or ended,
    /// since [`wait`](Self::wait) found nothing; and for ever once it is closed. Then `wait` with [`Wait::Now`] until there is nothing:
    /// only that asks for further events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }
}

impl PartialEq for Dispatcher {
    /// Whether both are handles on the same dispatcher.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Dispatcher {}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = lock(&self.0.members).by_number.len();
        f.debug_struct("Dispatcher").field("connections", &connections).finish_non_exhaustive()
    }
}

impl Waitable for Dispatcher {}

impl Watch for Dispatcher {
    fn watched(&self) -> io::Result<Watched> {
        Ok(Watched { fd: self.0.events.try_clone()?, waiters: Some(Arc::clone(&self.0.waiters)) })
    }
}
