---------------------------- MODULE Reassignment ----------------------------
(* The move of a partition that has several replicas, or is to have: those that get it join as any
   follower does, and the leader ends the move when all to which it goes are in sync.

   In ZooKeeper stand two nodes. `node` is the state node: leader, leader epoch, and who is in sync,
   each with the id of its log. `topic` is the topic's node: to whom the partition is assigned, and
   to whom it moves. All writes of the state node are on the condition that both are as they were
   read, so each is one step here. The leader `knows` whether what it read last is still the newest,
   as in the module Replication; a lost reply needs no step.

   A record is flushed with its append, and a process that ends loses nothing: power cuts are in the
   module Replication, and the stop and the request of a hand-over in the module Moves. *)

EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Brokers, None,
          From, To,     \* how many replicas the partition has, and is to have
          Records,      \* how many are appended at most
          Faults,       \* how many kills, cuts from ZooKeeper and lost disks there are
          Leads,        \* how often the lead changes
          Moves,        \* how often an operator asks for a move or cancels one
          Mutant        \* the rule that is broken, or "none"

VARIABLES node,     \* [leader, epoch, inSync]; inSync is a set of <<broker, log id>>
          topic,    \* [at, to, move]: sets of brokers, `to` is {} without a move; each has an id
          strays,   \* the brokers whose move was cancelled: they may be in sync for a while
          br,       \* each broker
          acked,    \* [at, e, v]: acknowledged as replicated
          ackers,   \* <<epoch, broker>>: who acknowledged in which epoch
          used      \* [records, faults, leads, moves]: what is used up of the bounds

vars == <<node, topic, strays, br, acked, ackers, used>>

Is(mutant) == Mutant = mutant

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b

NobodyTold == [x \in Brokers |-> None]

Lists(size) == {list \in SUBSET Brokers : Cardinality(list) = size}

Init == \E at \in Lists(From) : \E first \in at :
    LET all == {<<x, 1>> : x \in at} IN
    /\ node = [leader |-> first, epoch |-> 1, inSync |-> all]
    /\ topic = [at |-> at, to |-> {}, move |-> 0]
    /\ strays = {}
    /\ br = [x \in Brokers |->
             [up |-> TRUE, cut |-> FALSE,
              has |-> x \in at,         \* whether it has a log of the partition
              id |-> IF x \in at THEN 1 ELSE 0,
              log |-> <<>>,             \* of [e, v]
              hw |-> 0,                 \* the high watermark, while it leads
              start |-> 0,              \* the end of its log when it took the lead
              leads |-> IF x = first THEN 1 ELSE 0,     \* the epoch in which it believes to lead
              counts |-> IF x = first THEN all ELSE {}, \* for whom its watermark waits
              knows |-> x = first,      \* whether its copy of the state node is the newest
              told |-> NobodyTold,      \* what each follower told in this epoch: [id, end, move]
              follows |-> IF x \in at \ {first} THEN [who |-> first, epoch |-> 1] ELSE None,
              move |-> 0,               \* the move for which it follows; 0: it is assigned
              leaves |-> FALSE]]        \* whether it has read that it may let go of its log
    /\ acked = {} /\ ackers = {}
    /\ used = [records |-> 0, faults |-> 0, leads |-> 0, moves |-> 0]

Sees(x) == br[x].up /\ ~br[x].cut           \* reaches ZooKeeper; its broker node is there
Leading(x) == Sees(x) /\ br[x].leads = node.epoch /\ node.leader = x

StepDown(r) == [r EXCEPT !.leads = 0, !.counts = {}, !.knows = FALSE, !.told = NobodyTold,
                         !.follows = None, !.start = 0, !.hw = 0]

Me(x) == <<x, br[x].id>>
InSync == {member[1] : member \in node.inSync}

(* Nobody knows the newest version of the state node any more, but who reads it again. *)
Written(brokers) == [x \in Brokers |-> [brokers[x] EXCEPT !.knows = FALSE]]

---------------------------------------------------------------------------
(* Appends, the watermark, followers: as in the module Replication *)

Append_(x) ==
    /\ br[x].up /\ br[x].leads > 0 /\ used.records < Records
    /\ br' = [br EXCEPT ![x].log = Append(@, [e |-> br[x].leads, v |-> used.records + 1])]
    /\ used' = [used EXCEPT !.records = @ + 1]
    /\ UNCHANGED <<node, topic, strays, acked, ackers>>

EndOf(x, member) ==
    IF member[1] = x THEN Len(br[x].log)
    ELSE LET told == br[x].told[member[1]]
         IN IF told = None THEN 0 ELSE IF told.id # member[2] THEN 0 ELSE told.end

Ends(x) == {EndOf(x, member) : member \in br[x].counts}
Lowest(x) == CHOOSE e \in Ends(x) : \A f \in Ends(x) : e <= f

UpTo(x, end) == {[at |-> o, e |-> br[x].log[o].e, v |-> br[x].log[o].v] : o \in 1..end}

Advance(x) ==
    /\ br[x].up /\ br[x].leads > 0 /\ Lowest(x) > br[x].hw
    /\ br' = [br EXCEPT ![x].hw = Lowest(x)]
    /\ acked' = acked \cup UpTo(x, Lowest(x))
    /\ ackers' = ackers \cup {<<br[x].leads, x>>}
    /\ UNCHANGED <<node, topic, strays, used>>

MoveOf(x) == IF x \in topic.at THEN 0 ELSE topic.move

Follow(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ node.leader # x /\ x \in topic.at \cup topic.to
    /\ \/ br[x].follows # [who |-> node.leader, epoch |-> node.epoch]
       \/ br[x].move # MoveOf(x)
    /\ br' = [br EXCEPT ![x].follows = [who |-> node.leader, epoch |-> node.epoch],
                        ![x].move = MoveOf(x), ![x].leaves = FALSE,
                        ![x].id = IF br[x].has THEN @ ELSE @ + 1, ![x].has = TRUE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

EndUpTo(log, e) == Cardinality({o \in 1..Len(log) : log[o].e <= e})
EpochUpTo(log, e) == IF EndUpTo(log, e) = 0 THEN 0 ELSE log[EndUpTo(log, e)].e
Last(log) == IF log = <<>> THEN 0 ELSE log[Len(log)].e

(* It goes on with a follower to which the partition does not move any more until either hears. *)
Pull(x) ==
    /\ br[x].up /\ br[x].has /\ br[x].follows # None
    /\ LET l == br[x].follows.who
           mine == br[x].log
           theirs == br[l].log
           epoch == EpochUpTo(theirs, Last(mine))
           end == EndUpTo(theirs, Last(mine))
           diverges == mine # <<>> /\ (epoch # Last(mine) \/ end < Len(mine))
           to == IF epoch = Last(mine) THEN Min(end, Len(mine)) ELSE Min(EndUpTo(mine, epoch), end)
           new == IF Len(mine) < Len(theirs) THEN Append(mine, theirs[Len(mine) + 1]) ELSE mine
       IN /\ br[l].up /\ br[l].leads = br[x].follows.epoch
          /\ IF diverges
             THEN br' = [br EXCEPT ![x].log = SubSeq(mine, 1, to)]
             ELSE br' = [br EXCEPT
                      ![x].log = new,
                      ![l].told[x] = [id |-> br[x].id, end |-> Len(mine), move |-> br[x].move]]
    /\ br' # br
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

---------------------------------------------------------------------------
(* The leader changes who is in sync: as in the module Replication, but for whom it takes in *)

Drop(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows
    /\ \E member \in node.inSync :
        /\ member[1] # x
        /\ node' = [node EXCEPT !.inSync = @ \ {member}]
    /\ br' = Written(br)
    /\ UNCHANGED <<topic, strays, acked, ackers, used>>

(* What a target told in an earlier move does not count: it may have let go of that log since. *)
ToldInThisMove(x, y) ==
    /\ br[x].told[y] # None
    /\ br[x].told[y].move = topic.move \/ Is("what was told in an earlier move counts")

TakeIn(x, y) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows /\ y \notin InSync
    /\ y \in topic.at \cup topic.to
    /\ br[x].told[y] # None
    /\ \/ br[x].told[y].end >= Max(br[x].hw, br[x].start)
       \/ Is("a target is taken in before it has what is acknowledged")
    /\ y \in topic.at \/ ToldInThisMove(x, y)
    /\ LET member == <<y, br[x].told[y].id>>
       IN /\ node' = [node EXCEPT !.inSync = @ \cup {member}]
          /\ br' = Written([br EXCEPT ![x].counts = @ \cup {member}])
    /\ UNCHANGED <<topic, strays, acked, ackers, used>>

Hear(x) ==
    /\ Leading(x) /\ ~br[x].knows
    /\ br' = [br EXCEPT ![x].counts = node.inSync, ![x].knows = TRUE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

---------------------------------------------------------------------------
(* The end of a move *)

AllAreInSync(x) ==
    \A y \in topic.to \ {x} :
        \/ Is("the new list is written though one on it is not in sync")
        \/ /\ y \in InSync
           /\ y \in topic.at \/ (ToldInThisMove(x, y) /\ <<y, br[x].told[y].id>> \in node.inSync)

(* Who is in sync when the move has ended. *)
Arrived ==
    IF Is("the new list is written though one on it is not in sync")
    THEN {Me(y) : y \in topic.to}
    ELSE {member \in node.inSync :
             member[1] \in topic.to \/ Is("those that lose it stay in sync")}

Ended == topic' = [topic EXCEPT !.at = topic.to, !.to = {}]

(* The leader stays: one transaction, while appends go on. *)
Finish(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows /\ x \in topic.to
    /\ AllAreInSync(x)
    /\ node' = [node EXCEPT !.inSync = Arrived]
    /\ Ended
    /\ br' = Written(br)
    /\ UNCHANGED <<strays, acked, ackers, used>>

FinishForItself(x) ==
    /\ Is("the watermark goes by the new list before ZooKeeper does")
    /\ br[x].up /\ br[x].leads > 0 /\ x \in topic.to
    /\ br' = [br EXCEPT ![x].counts = {member \in @ : member[1] \in topic.to}]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

Change == used.leads < Leads /\ used' = [used EXCEPT !.leads = @ + 1]

HasAll(x, y) ==
    /\ br[x].told[y] # None
    /\ <<y, br[x].told[y].id>> \in node.inSync
    /\ br[x].told[y].end = Len(br[x].log)

(* To an assigned member: in a move, to one that stays. *)
HandOver(x, y) ==
    /\ Change /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows /\ x # y
    /\ y \in topic.at /\ HasAll(x, y)
    /\ node' = [node EXCEPT !.leader = y, !.epoch = @ + 1]
    /\ br' = Written([br EXCEPT ![x] = StepDown(@)])
    /\ UNCHANGED <<topic, strays, acked, ackers>>

(* All are new: to one of them, in one transaction with the end of the move. *)
HandOverAtEnd(x, y) ==
    /\ Change /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows
    /\ topic.to \cap ({x} \cup topic.at) = {} /\ y \in topic.to
    /\ AllAreInSync(x) /\ ToldInThisMove(x, y) /\ HasAll(x, y)
    /\ node' = [leader |-> y, epoch |-> node.epoch + 1, inSync |-> Arrived]
    /\ Ended
    /\ br' = Written([br EXCEPT ![x] = StepDown(@)])
    /\ UNCHANGED <<strays, acked, ackers>>

---------------------------------------------------------------------------
(* Elections *)

Taken(r, epoch, inSync) ==
    [StepDown(r) EXCEPT !.leads = epoch, !.counts = inSync, !.knows = TRUE, !.start = Len(r.log),
                        !.leaves = FALSE]

LeaderGone == ~Sees(node.leader) \/ br[node.leader].leads # node.epoch

(* A target that is elected is assigned from then on: in the place of one that is to leave and is not
   in sync, if there is one. *)
WithElected(x) ==
    LET leave == {z \in topic.at \ topic.to : z \notin InSync /\ ~Sees(z)}
    IN IF x \in topic.at \/ Is("an elected target is not assigned") THEN {topic.at}
       ELSE IF leave = {} THEN {topic.at \cup {x}}
       ELSE {(topic.at \ {z}) \cup {x} : z \in leave}

(* Whoever is in sync and assigned, or a target of the move that stands, all in one transaction. That
   targets wait for those that are assigned is time, and not here. *)
Elect(x) ==
    /\ Change /\ Sees(x) /\ br[x].leads = 0 /\ br[x].has /\ LeaderGone
    /\ Me(x) \in node.inSync \/ Is("a target that is not in sync is elected")
    /\ x \in topic.at \cup topic.to
    /\ LET live == IF x = node.leader THEN node.inSync
                   ELSE {m \in node.inSync : m[1] # node.leader /\ Sees(m[1])}
           members == {m \in live : m[1] # x} \cup {Me(x)}
       IN /\ node' = [leader |-> x, epoch |-> node.epoch + 1, inSync |-> members]
          /\ br' = [Written(br) EXCEPT ![x] = Taken(@, node.epoch + 1, members)]
    /\ \E at \in WithElected(x) : topic' = [topic EXCEPT !.at = at]
    /\ UNCHANGED <<strays, acked, ackers>>

(* Who got the lead has followed in a lower epoch in this life, so the epoch is new to it. *)
TakeOver(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ br[x].follows # None
    /\ node.leader = x /\ Me(x) \in node.inSync
    /\ br' = [br EXCEPT ![x] = Taken(@, node.epoch, node.inSync)]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

StepsDown(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ ~Leading(x)
    /\ br' = [br EXCEPT ![x] = StepDown(@)]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

---------------------------------------------------------------------------
(* A log of which neither node has anything is let go, by what both said a while ago *)

(* It may not have heard yet that a new move wants it. *)
Leave(x) ==
    /\ Sees(x) /\ br[x].has /\ br[x].leads = 0 /\ ~br[x].leaves
    /\ x \notin topic.at /\ (x \notin topic.to \/ br[x].move # topic.move)
    /\ node.leader \in topic.at
    /\ Me(x) \notin node.inSync \/ Is("a log is set aside while it is in sync")
    /\ br' = [br EXCEPT ![x].leaves = TRUE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

SetAside(x) ==
    /\ br[x].up /\ br[x].leaves
    /\ br' = [br EXCEPT ![x].has = FALSE, ![x].log = <<>>, ![x].follows = None,
                        ![x].move = 0, ![x].leaves = FALSE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

---------------------------------------------------------------------------
(* The operator *)

Ordered == used.moves < Moves /\ used' = [used EXCEPT !.moves = @ + 1]

Move(to) ==
    /\ Ordered /\ topic.to = {} /\ to # topic.at
    /\ topic' = [topic EXCEPT !.to = to, !.move = used'.moves]
    /\ strays' = strays \ to
    /\ UNCHANGED <<node, br, acked, ackers>>

(* It compares the topic's node alone, which all writes of the state node do too. *)
Cancel ==
    /\ Ordered /\ topic.to # {}
    /\ topic' = [topic EXCEPT !.to = {}]
    /\ strays' = (strays \cup topic.to) \ topic.at
    /\ UNCHANGED <<node, br, acked, ackers>>

---------------------------------------------------------------------------
(* Faults *)

Fault == used.faults < Faults /\ used' = [used EXCEPT !.faults = @ + 1]

Kill(x) ==
    /\ Fault /\ br[x].up
    /\ br' = [br EXCEPT ![x] = [StepDown(@) EXCEPT !.up = FALSE, !.cut = FALSE, !.leaves = FALSE]]
    /\ UNCHANGED <<node, topic, strays, acked, ackers>>

Start(x) ==
    /\ ~br[x].up
    /\ br' = [br EXCEPT ![x].up = TRUE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

(* Its disk is new. That loses what was acknowledged if ZooKeeper has nobody else in sync, by
   definition, or if all others have lost theirs. *)
StartEmpty(x) ==
    /\ Fault /\ ~br[x].up /\ br[x].has
    /\ node.inSync # {Me(x)}
    /\ br' = [br EXCEPT ![x].up = TRUE, ![x].has = FALSE, ![x].log = <<>>,
                        ![x].move = 0]
    /\ UNCHANGED <<node, topic, strays, acked, ackers>>

(* Of a leader: a follower that is cut off does nothing that one that waits does not. *)
CutOff(x) ==
    /\ Fault /\ Sees(x) /\ br[x].leads > 0
    /\ br' = [br EXCEPT ![x].cut = TRUE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers>>

Mend(x) ==
    /\ br[x].cut
    /\ br' = [br EXCEPT ![x].cut = FALSE]
    /\ UNCHANGED <<node, topic, strays, acked, ackers, used>>

---------------------------------------------------------------------------
Next ==
    \/ \E x \in Brokers :
        \/ Append_(x) \/ Advance(x) \/ Follow(x) \/ Pull(x) \/ Hear(x) \/ Drop(x)
        \/ Finish(x) \/ FinishForItself(x) \/ Elect(x) \/ TakeOver(x) \/ StepsDown(x)
        \/ Leave(x) \/ SetAside(x)
        \/ Kill(x) \/ Start(x) \/ StartEmpty(x) \/ CutOff(x) \/ Mend(x)
        \/ \E y \in Brokers \ {x} : TakeIn(x, y) \/ HandOver(x, y) \/ HandOverAtEnd(x, y)
    \/ \E to \in Lists(To) : Move(to)
    \/ Cancel

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Brokers)

---------------------------------------------------------------------------
(* What has to hold *)

Leads_(x) == br[x].up /\ node.leader = x /\ br[x].leads = node.epoch

Holds(x) == \A a \in acked : a.at <= Len(br[x].log) /\ br[x].log[a.at] = [e |-> a.e, v |-> a.v]

(* What is acknowledged stands at its offset with whoever leads. *)
AcknowledgedStands == \A x \in Brokers : Leads_(x) => Holds(x)

(* And while nobody leads, somebody in sync has it, who can be elected. *)
AcknowledgedIsKept ==
    acked # {} => \E x \in Brokers : br[x].has /\ Me(x) \in node.inSync /\ Holds(x)

NoOffsetTwice == \A a, b \in acked : a.at = b.at => a = b

OneLeaderAnEpoch == \A a, b \in ackers : a[1] = b[1] => a[2] = b[2]

(* Else it would not lead after a restart or a cancel. *)
LeaderIsAssigned == node.leader \in topic.at

LeaderIsInSync == node.leader \in InSync

(* Of others, only those whose move was cancelled are in sync, until the leader drops them. *)
MembersAreAssigned == InSync \subseteq topic.at \cup topic.to \cup strays

(* Who is in sync has its log, but where a disk was lost. *)
LogsAreThere ==
    used.faults = 0 => \A member \in node.inSync :
        br[member[1]].has /\ br[member[1]].id = member[2]
=============================================================================
