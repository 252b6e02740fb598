//! A replica that consists of a state and closures, for a program that is too small for a type with an
//! `impl`.

use std::{fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

use super::{Answer, Corrupt, Object, Origin, Share, Snapshot, View};

/// An object made of a state and closures that handle its updates, queries and views. `Handlers` is an
/// [`Object`] like any other: programs may join one group if they use the same name, types of the same
/// structure and the same encoding of the state, whether they use closures or not.
///
/// The state belongs to the group. Values that a closure captures belong to this program alone, so the effect
/// of an update must not depend on them.
///
/// Updates have one type. A program with several kinds of updates uses an `enum`. `Handlers` serialises the
/// state while the member waits, so a large state should have a type of its own whose
/// [`checkpoint`](Object::checkpoint) uses [`Snapshot::later`].
///
/// ```
/// use quorate::{
///     Local, Node, Wait,
///     group::{Answer, Handlers, Want},
/// };
///
/// let cluster = Local::start().wait().unwrap();
/// let node = Node::builder().routers(cluster.addresses()).start().wait()?;
/// let votes = Handlers::new("votes/1", Vec::new())
///     .update(|votes: &mut Vec<String>, vote: String, _| votes.push(vote))
///     .query(|votes, name: String, _| Answer::Now(votes.iter().filter(|vote| **vote == name).count()))
///     .view(|_, view| println!("{} members", view.members.len()));
/// let votes = node.group("votes").join(votes).wait()?;
/// votes.ordered_send("ann".into()).wait()?;
/// assert_eq!(votes.read(|votes| votes.state().len())?, 1);
/// assert_eq!(votes.query("ann".into(), Want::All).wait()?.replies[0].reply, 1);
/// # Ok::<(), quorate::Error>(())
/// ```
#[must_use = "an object has no effect until a group is joined with it"]
pub struct Handlers<S, U = (), Q = (), A = ()> {
    name: Arc<str>,
    state: S,
    update: OnUpdate<S, U>,
    query: OnQuery<S, Q, A>,
    view: OnView<S>,
}

type OnUpdate<S, U> = Arc<dyn Fn(&mut S, U, &Origin) + Send + Sync>;
type OnQuery<S, Q, A> = Arc<dyn Fn(&S, Q, Share) -> Answer<A> + Send + Sync>;
type OnView<S> = Arc<dyn Fn(&mut S, &View) + Send + Sync>;

impl<S> Handlers<S> {
    /// Makes an object without handlers. `name` is what [`Replica::NAME`](super::Replica::NAME) is for a
    /// type.
    pub fn new(name: &str, state: S) -> Handlers<S> {
        Handlers {
            name: name.into(),
            state,
            update: Arc::new(|_, (), _| {}),
            query: Arc::new(|_, (), _| Answer::Declined),
            view: Arc::new(|_, _| {}),
        }
    }
}

impl<S, U, Q, A> Handlers<S, U, Q, A> {
    /// Sets the handler that changes the state by an update, as [`Object::apply`] does. It replaces the
    /// former handler.
    pub fn update<V>(
        self,
        update: impl Fn(&mut S, V, &Origin) + Send + Sync + 'static,
    ) -> Handlers<S, V, Q, A> {
        let Handlers { name, state, query, view, .. } = self;
        Handlers { name, state, update: Arc::new(update), query, view }
    }

    /// Sets the handler that answers a query, as [`Object::query`] does. It replaces the former handler.
    /// Without a handler, queries are declined.
    pub fn query<P, B>(
        self,
        query: impl Fn(&S, P, Share) -> Answer<B> + Send + Sync + 'static,
    ) -> Handlers<S, U, P, B> {
        let Handlers { name, state, update, view, .. } = self;
        Handlers { name, state, update, query: Arc::new(query), view }
    }

    /// Sets the handler for a new view, as in [`Object::view`]. It replaces the former handler.
    pub fn view(self, view: impl Fn(&mut S, &View) + Send + Sync + 'static) -> Self {
        Handlers { view: Arc::new(view), ..self }
    }

    /// Returns the state.
    pub fn state(&self) -> &S {
        &self.state
    }
}

impl<S, U, Q, A> Object for Handlers<S, U, Q, A>
where
    S: Serialize + DeserializeOwned + Send + 'static,
    U: Serialize + DeserializeOwned + Send + 'static,
    Q: Serialize + DeserializeOwned + Send + 'static,
    A: Serialize + DeserializeOwned + Send + 'static,
{
    type Update = U;
    type Query = Q;
    type Reply = A;

    fn name(&self) -> &str {
        &self.name
    }

    fn apply(&mut self, update: U, origin: &Origin) {
        (self.update)(&mut self.state, update, origin);
    }

    fn query(&self, query: Q, share: Share) -> Answer<A> {
        (self.query)(&self.state, query, share)
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&self.state)
    }

    fn restore(&self, snapshot: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Handlers {
            name: self.name.clone(),
            state: snapshot.read()?,
            update: self.update.clone(),
            query: self.query.clone(),
            view: self.view.clone(),
        })
    }

    fn view(&mut self, view: &View) {
        (self.view)(&mut self.state, view);
    }
}

impl<S: fmt::Debug, U, Q, A> fmt::Debug for Handlers<S, U, Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("name", &self.name)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
