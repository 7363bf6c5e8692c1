------------------------------- MODULE Moves -------------------------------
(* The move of a partition that has one replica: the target pulls, the leader hands the lead over.

   In ZooKeeper stand two nodes. `node` is the state node: leader, leader epoch, and the log id that
   is in sync. `topic` is the topic's node: the broker that the partition is assigned to, and the
   target of a move. Versions are not counted: a request that is under way knows whether what it
   compares with is still the newest (`current`).

   A request to hand over is a message: it is carried out later, or never, and its sender may be
   killed, asleep, or cut off from ZooKeeper meanwhile. So the lost reply needs no step of its own. *)

EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Brokers, None,
          Records,      \* how many are appended at most
          Faults,       \* how many kills, power cuts, cuts from ZooKeeper and sleeps there are
          Moves,        \* how often an operator asks for a move, forces one, or cancels
          Epochs,       \* leader epochs at most
          Staging,      \* whether a write is staged meanwhile
          Mutant        \* the rule that is broken, or "none"

VARIABLES node,     \* [leader, epoch, id]: the state node
          topic,    \* [at, target, move]: the topic's node; each move has an id
          sent,     \* the request to hand over that is under way, or None
          cancel,   \* what a cancelling tool has read, under the mutant that cancels blindly
          br,       \* each broker
          acked,    \* [at, e, v]: the records that were acknowledged
          ackers,   \* <<epoch, broker>>: who acknowledged in which epoch
          promised, \* whether the staged bytes were promised to be there
          used      \* [records, faults, moves]: what is used up of the bounds

vars == <<node, topic, sent, cancel, br, acked, ackers, promised, used>>

Is(mutant) == Mutant = mutant

Min(a, b) == IF a < b THEN a ELSE b

Fresh == [up |-> TRUE, asleep |-> FALSE, unsure |-> FALSE, cut |-> FALSE,
          has |-> FALSE,        \* whether it has a log of the partition
          id |-> 0,             \* the log id
          log |-> <<>>,         \* of [e, v]
          flushed |-> 0,
          staged |-> 0,         \* bytes of an open write, flushed
          leads |-> 0,          \* the epoch in which it believes to lead
          stopped |-> FALSE,    \* it takes no appends, because it hands over
          asked |-> FALSE,      \* it has sent the request
          told |-> None,        \* what its follower told it in this epoch: [id, end, staged]
          follows |-> 0,        \* the epoch of the leader that it pulls from
          move |-> 0]           \* the move for which it pulls

Down(r) == [r EXCEPT !.up = FALSE, !.asleep = FALSE, !.unsure = FALSE, !.cut = FALSE, !.leads = 0,
                     !.stopped = FALSE, !.asked = FALSE, !.told = None, !.follows = 0, !.move = 0]

StepDown(r) == [r EXCEPT !.leads = 0, !.stopped = FALSE, !.asked = FALSE, !.told = None,
                         !.unsure = FALSE]

Init == \E first \in Brokers :
    /\ node = [leader |-> first, epoch |-> 1, id |-> 1]
    /\ topic = [at |-> first, target |-> None, move |-> 0]
    /\ sent = None /\ cancel = None
    /\ br = [x \in Brokers |-> IF x = first
                               THEN [Fresh EXCEPT !.has = TRUE, !.id = 1, !.leads = 1]
                               ELSE Fresh]
    /\ acked = {} /\ ackers = {} /\ promised = FALSE
    /\ used = [records |-> 0, faults |-> 0, moves |-> 0]

Runs(x) == br[x].up /\ ~br[x].asleep
Sees(x) == Runs(x) /\ ~br[x].cut            \* reaches ZooKeeper
Serves(x) == Runs(x) /\ br[x].leads > 0 /\ ~br[x].unsure
Lives(x) == br[x].up /\ ~br[x].asleep /\ ~br[x].cut    \* its broker node is there

(* Each write of a node makes requests that compare with the older version fail. *)
StateWritten == sent' = IF sent = None THEN None ELSE [sent EXCEPT !.current = FALSE]
TopicWritten == sent' = IF sent = None THEN None ELSE [sent EXCEPT !.aimed = FALSE]

---------------------------------------------------------------------------
(* Appends, flushes, acknowledgements *)

Append_(x) ==
    /\ Serves(x) /\ ~br[x].stopped /\ used.records < Records
    /\ br' = [br EXCEPT ![x].log = Append(@, [e |-> br[x].leads, v |-> used.records + 1])]
    /\ used' = [used EXCEPT !.records = @ + 1]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised>>

Flush(x) ==
    /\ Runs(x) /\ br[x].flushed < Len(br[x].log)
    /\ br' = [br EXCEPT ![x].flushed = Len(br[x].log)]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

Everything(x) == {[at |-> o, e |-> br[x].log[o].e, v |-> br[x].log[o].v] : o \in 1..br[x].flushed}

(* Not once the request to hand over is sent: the target may have got the lead, and an operator may
   have given up what the target had. *)
Acknowledge(x) ==
    /\ Serves(x) /\ ~(Everything(x) \subseteq acked)
    /\ ~br[x].asked \/ Is("the leader acknowledges after the request")
                    \/ Is("appends go on during the hand-over")
    /\ acked' = acked \cup Everything(x)
    /\ ackers' = ackers \cup {<<br[x].leads, x>>}
    /\ UNCHANGED <<node, topic, sent, cancel, br, promised, used>>

Stage(x) ==
    /\ Serves(x) /\ (~br[x].stopped \/ Is("staging goes on during the hand-over"))
    /\ Staging /\ br[x].staged = 0
    /\ br' = [br EXCEPT ![x].staged = 1]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

Promise(x) ==
    /\ Serves(x) /\ br[x].staged = 1 /\ ~promised
    /\ promised' = TRUE
    /\ UNCHANGED <<node, topic, sent, cancel, br, acked, ackers, used>>

---------------------------------------------------------------------------
(* The target pulls *)

Follow(x) ==
    /\ Sees(x) /\ topic.target = x /\ node.leader # x /\ br[x].leads = 0
    /\ br[x].follows # node.epoch \/ br[x].move # topic.move
    /\ br' = [br EXCEPT ![x].follows = node.epoch, ![x].move = topic.move,
                        ![x].id = IF br[x].has THEN @ ELSE @ + 1,
                        ![x].has = TRUE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

EndUpTo(log, e) == Cardinality({o \in 1..Len(log) : log[o].e <= e})
EpochUpTo(log, e) == IF EndUpTo(log, e) = 0 THEN 0 ELSE log[EndUpTo(log, e)].e
Last(log) == EpochUpTo(log, Epochs)

Pull(x, l) ==
    /\ Runs(x) /\ br[x].has /\ br[x].leads = 0 /\ br[x].follows > 0
    /\ Runs(l) /\ br[l].leads = br[x].follows
    /\ LET mine == br[x].log
           theirs == br[l].log
           epoch == EpochUpTo(theirs, Last(mine))
           end == EndUpTo(theirs, Last(mine))
           diverges == mine # <<>> /\ (epoch # Last(mine) \/ end < Len(mine))
           to == IF epoch = Last(mine) THEN Min(end, Len(mine)) ELSE Min(EndUpTo(mine, epoch), end)
       IN IF diverges
          THEN br' = [br EXCEPT ![x].log = SubSeq(mine, 1, to), ![x].flushed = Min(@, to)]
          ELSE br' = [br EXCEPT
                   ![x].log = IF Len(mine) < Len(theirs) THEN Append(mine, theirs[Len(mine) + 1])
                              ELSE mine,
                   ![x].staged = br[l].staged,
                   ![l].told = [id |-> br[x].id, who |-> x, move |-> br[x].move,
                                staged |-> br[x].staged,
                                end |-> IF Is("the target tells what it wrote") THEN Len(mine)
                                        ELSE br[x].flushed]]
    /\ br' # br
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

---------------------------------------------------------------------------
(* The hand-over *)

(* What a target told in an earlier move does not count: it may have set that log aside since. *)
ToldInThisMove(l) ==
    /\ topic.target = br[l].told.who
    /\ br[l].told.move = topic.move \/ Is("what was told in an earlier move counts")

Stop(l) ==
    /\ Sees(l) /\ Serves(l) /\ ~br[l].stopped
    /\ br[l].told # None /\ ToldInThisMove(l)
    /\ br' = [br EXCEPT ![l].stopped = TRUE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

(* The move was cancelled, or the target is too slow. Only before the request is sent. *)
Resume(l) ==
    /\ Serves(l) /\ br[l].stopped /\ ~br[l].asked
    /\ br' = [br EXCEPT ![l].stopped = FALSE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

HasAll(l) ==
    /\ br[l].told.end = Len(br[l].log) \/ Is("the hand-over does not wait for the end")
    /\ br[l].told.staged = br[l].staged \/ Is("the hand-over leaves staged bytes behind")

Ask(l) ==
    /\ Sees(l) /\ Serves(l) /\ ~br[l].asked /\ sent = None
    /\ br[l].stopped \/ (Is("appends go on during the hand-over") /\ br[l].told # None)
    /\ node.leader = l /\ node.epoch = br[l].leads      \* it compares with the version it wrote
    /\ ToldInThisMove(l)
    /\ HasAll(l)
    /\ \/ br[l].flushed = Len(br[l].log) /\ Everything(l) \subseteq acked
       \/ Is("the leader acknowledges after the request")
    /\ sent' = [to |-> br[l].told.who, id |-> br[l].told.id, current |-> TRUE, aimed |-> TRUE]
    /\ br' = [br EXCEPT ![l].asked = TRUE]
    /\ IF Is("the assignment is written before the hand-over")
       THEN topic' = [topic EXCEPT !.at = br[l].told.who, !.target = None]
       ELSE UNCHANGED topic
    /\ UNCHANGED <<node, cancel, acked, ackers, promised, used>>

(* One transaction: the state node by compare-and-set, the topic's node by its version. *)
HandOver ==
    /\ sent # None
    /\ sent' = None
    /\ LET done == /\ sent.current
                   /\ sent.aimed \/ Is("the hand-over does not compare the topic's node")
                                 \/ Is("the assignment is written before the hand-over")
                   /\ node.epoch < Epochs
       IN node' = IF done THEN [leader |-> sent.to, epoch |-> node.epoch + 1, id |-> sent.id]
                  ELSE node
    /\ UNCHANGED <<topic, cancel, br, acked, ackers, promised, used>>

Lost ==
    /\ sent # None /\ sent' = None
    /\ UNCHANGED <<node, topic, cancel, br, acked, ackers, promised, used>>

(* The leader settles a request of which it knows no reply. It does so by a write, and not by a
   read alone: a request that is still under way cannot be carried out after it. *)
Settle(l) ==
    /\ Serves(l) /\ br[l].asked
    /\ IF Is("the old leader goes on after a lost reply")
       THEN /\ br' = [br EXCEPT ![l].asked = FALSE, ![l].stopped = FALSE]
            /\ UNCHANGED <<node, sent>>
       ELSE /\ Sees(l)
            /\ IF node.leader # l \/ node.epoch # br[l].leads
               THEN br' = [br EXCEPT ![l] = StepDown(@)] /\ UNCHANGED <<node, sent>>
               ELSE IF Is("a lost reply is settled by a read alone")
               THEN /\ br' = [br EXCEPT ![l].asked = FALSE, ![l].stopped = FALSE]
                    /\ UNCHANGED <<node, sent>>
               ELSE /\ node.epoch < Epochs
                    /\ node' = [node EXCEPT !.epoch = @ + 1]
                    /\ StateWritten
                    /\ br' = [br EXCEPT ![l] = [StepDown(@) EXCEPT !.leads = node.epoch + 1]]
    /\ UNCHANGED <<topic, cancel, acked, ackers, promised, used>>

(* The target has seen that it leads. It was there when it got the epoch, so the epoch is new to it.
   After a restart it cannot know that, and takes an epoch of its own. *)
TakeOver(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ br[x].has
    /\ \/ /\ node.leader = x
          /\ node.id = br[x].id \/ Is("the hand-over names a broker and no log id")
       \/ topic.at = x /\ Is("a restarted broker leads what is assigned to it")
    /\ IF (br[x].follows > 0 /\ br[x].follows + 1 = node.epoch)
          \/ Is("a restarted leader goes on in its epoch")
       THEN br' = [br EXCEPT ![x].leads = node.epoch, ![x].follows = 0] /\ UNCHANGED <<node, sent>>
       ELSE /\ node.epoch < Epochs
            /\ node' = [leader |-> x, epoch |-> node.epoch + 1, id |-> br[x].id]
            /\ StateWritten
            /\ br' = [br EXCEPT ![x].leads = node.epoch + 1, ![x].follows = 0]
    /\ UNCHANGED <<topic, cancel, acked, ackers, promised, used>>

StepsDown(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ ~br[x].asked
    /\ node.leader # x \/ node.epoch # br[x].leads
    /\ br' = [br EXCEPT ![x] = StepDown(@)]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

(* By the new leader, when it leads. *)
Finish(x) ==
    /\ Sees(x) /\ br[x].leads = node.epoch /\ node.leader = x /\ topic.target = x
    /\ topic' = [topic EXCEPT !.at = x, !.target = None]
    /\ TopicWritten
    /\ UNCHANGED <<node, cancel, br, acked, ackers, promised, used>>

(* A log that is neither assigned nor in sync, by both nodes, is set aside, and deleted later. The
   broker may not have seen yet that a new move wants it. *)
SetAside(x) ==
    /\ Sees(x) /\ br[x].has /\ br[x].leads = 0
    /\ topic.at # x /\ (topic.target # x \/ br[x].move # topic.move)
    /\ node.leader # x \/ Is("a log is set aside by the assignment alone")
    /\ br' = [br EXCEPT ![x].has = FALSE, ![x].log = <<>>, ![x].flushed = 0, ![x].staged = 0,
                        ![x].follows = 0]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

---------------------------------------------------------------------------
(* The operator *)

Ordered == used.moves < Moves /\ used' = [used EXCEPT !.moves = @ + 1]

Move(t) ==
    /\ Ordered /\ topic.target = None /\ topic.at # t
    /\ topic' = [topic EXCEPT !.target = t, !.move = used'.moves] /\ TopicWritten
    /\ UNCHANGED <<node, cancel, br, acked, ackers, promised>>

(* One transaction: it compares the state node too, so that it is refused when the target leads. *)
Cancel ==
    /\ Ordered /\ topic.target # None /\ node.leader # topic.target
    /\ IF Is("a cancel does not compare") THEN cancel' = topic /\ UNCHANGED <<topic, sent>>
       ELSE /\ topic' = [topic EXCEPT !.target = None] /\ TopicWritten
            /\ UNCHANGED cancel
    /\ UNCHANGED <<node, br, acked, ackers, promised>>

CancelBlindly ==
    /\ cancel # None
    /\ cancel' = None
    /\ topic' = [cancel EXCEPT !.target = None] /\ TopicWritten
    /\ UNCHANGED <<node, br, acked, ackers, promised, used>>

(* Gives up what the leader has, whose broker node is gone: nothing that was acknowledged counts. *)
Force(t) ==
    /\ Ordered /\ t # node.leader /\ Lives(t) /\ node.epoch < Epochs
    /\ ~br[node.leader].up \/ br[node.leader].asleep
       \/ (Is("forced while the old leader serves, cut off") /\ br[node.leader].cut)
    /\ node' = [leader |-> t, epoch |-> node.epoch + 1, id |-> br[t].id + 1]
    /\ topic' = [topic EXCEPT !.at = t, !.target = None]
    /\ sent' = IF sent = None THEN None ELSE [sent EXCEPT !.current = FALSE, !.aimed = FALSE]
    /\ br' = [br EXCEPT ![t] = [StepDown(@) EXCEPT !.has = TRUE, !.id = @ + 1, !.log = <<>>,
                                !.flushed = 0, !.staged = 0, !.follows = 0]]
    /\ acked' = {} /\ promised' = FALSE
    /\ UNCHANGED <<cancel, ackers>>

---------------------------------------------------------------------------
(* Faults *)

Fault == used.faults < Faults /\ used' = [used EXCEPT !.faults = @ + 1]

Kill(x) ==
    /\ Fault /\ br[x].up
    /\ \E kept \in {br[x].flushed, Len(br[x].log)} :    \* a power cut, or the process alone
        br' = [br EXCEPT ![x] = [Down(@) EXCEPT !.log = SubSeq(@, 1, kept)]]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised>>

Start(x) ==
    /\ ~br[x].up
    /\ br' = [br EXCEPT ![x].up = TRUE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

(* Its disk is new. Of a log that is in sync this loses what was acknowledged, by definition. *)
StartEmpty(x) ==
    /\ Fault /\ ~br[x].up /\ br[x].has /\ ~(node.leader = x /\ node.id = br[x].id)
    /\ br' = [br EXCEPT ![x].up = TRUE, ![x].has = TRUE, ![x].id = @ + 1, ![x].log = <<>>,
                        ![x].flushed = 0, ![x].staged = 0]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised>>

CutOff(x) ==
    /\ Fault /\ br[x].up /\ ~br[x].cut
    /\ br' = [br EXCEPT ![x].cut = TRUE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised>>

Mend(x) ==
    /\ br[x].cut
    /\ br' = [br EXCEPT ![x].cut = FALSE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

Sleep(x) ==
    /\ Fault /\ br[x].up /\ ~br[x].asleep
    /\ br' = [br EXCEPT ![x].asleep = TRUE]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised>>

(* A broker that slept is unsure of what it leads until it has read the partition's state. *)
Wake(x) ==
    /\ br[x].asleep
    /\ br' = [br EXCEPT ![x].asleep = FALSE,
                        ![x].unsure = br[x].leads > 0
                                      /\ ~Is("a leader wakes without reading the partition's state")]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

BeSure(x) ==
    /\ Sees(x) /\ br[x].unsure
    /\ br' = [br EXCEPT ![x] = IF node.leader = x /\ node.epoch = br[x].leads
                               THEN [@ EXCEPT !.unsure = FALSE] ELSE StepDown(@)]
    /\ UNCHANGED <<node, topic, sent, cancel, acked, ackers, promised, used>>

---------------------------------------------------------------------------
Next ==
    \/ \E x \in Brokers :
        \/ Append_(x) \/ Flush(x) \/ Acknowledge(x) \/ Stage(x) \/ Promise(x)
        \/ Follow(x) \/ Stop(x) \/ Resume(x) \/ Ask(x) \/ Settle(x)
        \/ TakeOver(x) \/ StepsDown(x) \/ Finish(x) \/ SetAside(x)
        \/ Move(x) \/ Force(x)
        \/ Kill(x) \/ Start(x) \/ StartEmpty(x) \/ CutOff(x) \/ Mend(x)
        \/ Sleep(x) \/ Wake(x) \/ BeSure(x)
        \/ \E l \in Brokers \ {x} : Pull(x, l)
    \/ HandOver \/ Lost \/ Cancel \/ CancelBlindly

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Brokers)

---------------------------------------------------------------------------
(* What has to hold *)

Leads(x) == br[x].up /\ node.leader = x /\ br[x].leads = node.epoch

Holds(x) == \A a \in acked : /\ a.at <= Len(br[x].log)
                             /\ br[x].log[a.at] = [e |-> a.e, v |-> a.v]

(* What is acknowledged stands at its offset with whoever leads. *)
AcknowledgedStands == \A x \in Brokers : Leads(x) => Holds(x)

(* And while nobody leads, somebody's disk has it. *)
AcknowledgedIsKept == acked # {} => \E x \in Brokers : br[x].has /\ Holds(x)

NoOffsetTwice == \A a, c \in acked : a.at = c.at => a = c

OneLeaderAnEpoch == \A a, c \in ackers : a[1] = c[1] => a[2] = c[2]

PromisedStands == promised => \A x \in Brokers : Leads(x) => br[x].staged = 1

(* Who is in sync is assigned, or is to be: else it would not lead after a restart. *)
LeaderIsAssigned == node.leader \in {topic.at, topic.target}

(* Without faults the log that is in sync is there, so that somebody can lead. *)
LogIsThere == used.faults = 0 => br[node.leader].has /\ br[node.leader].id = node.id
=============================================================================
