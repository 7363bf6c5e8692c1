---------------------------- MODULE Replication ----------------------------
(* The replication of one partition: in-sync sets in ZooKeeper, elections without a controller.

   The state node has the leader, its epoch, and who is in sync: brokers, each with the id of the
   log that was taken in. It is written by compare-and-set. Versions are not counted: a leader
   `knows` whether what it read last is still the newest, and forgets that with each write, its own
   too, until it has heard the outcome or read the node again. So a lost reply needs no step.

   Appending, flushing and acknowledging are steps apart; a power cut takes what is not flushed. *)

EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Brokers, None,
          Records,      \* how many are appended at most
          Faults,       \* how many kills, power cuts, cuts from ZooKeeper and lost disks there are
          Elections,    \* how often the lead changes
          FlushApart,   \* whether a flush is a step apart, and what is not flushed can be lost
          PageCache,    \* flush.policy=os: written counts as flushed, and a power cut takes any tail
          Restores,     \* whether an older copy of a disk may come back
          Mutant        \* the rule that is broken, or "none"

VARIABLES node,     \* [leader, epoch, inSync, committed]; inSync is a set of <<broker, log id>>
          br,       \* each broker
          acked,    \* [at, e, v]: acknowledged as replicated
          flushed,  \* likewise as flushed, by the leader alone; counts until an election
          ackers,   \* <<epoch, broker>>: who acknowledged in which epoch
          restored, \* whether an older copy came back
          used      \* [records, faults, elections]: what is used up of the bounds

vars == <<node, br, acked, flushed, ackers, restored, used>>

Is(mutant) == Mutant = mutant

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b

NobodyTold == [x \in Brokers |-> None]

Init == \E first \in Brokers :
    LET all == {<<x, 1>> : x \in Brokers} IN
    /\ node = [leader |-> first, epoch |-> 1, inSync |-> all, committed |-> 0]
    /\ br = [x \in Brokers |->
             [up |-> TRUE, cut |-> FALSE,
              id |-> 1,                 \* the log id
              log |-> <<>>,             \* of [e, v]
              flushed |-> 0,
              hw |-> 0,                 \* the high watermark
              start |-> 0,              \* the end of its log when it took the lead
              leads |-> IF x = first THEN 1 ELSE 0,     \* the epoch in which it believes to lead
              counts |-> IF x = first THEN all ELSE {}, \* for whom its watermark waits
              knows |-> x = first,      \* whether its copy of the state node is the newest
              told |-> NobodyTold,      \* what each follower told in this epoch: [id, end]
              follows |-> IF x = first THEN None ELSE [who |-> first, epoch |-> 1]]]
    /\ acked = {} /\ flushed = {} /\ ackers = {} /\ restored = FALSE
    /\ used = [records |-> 0, faults |-> 0, elections |-> 0]

Sees(x) == br[x].up /\ ~br[x].cut           \* reaches ZooKeeper; its broker node is there

StepDown(r) == [r EXCEPT !.leads = 0, !.counts = {}, !.knows = FALSE, !.told = NobodyTold,
                         !.follows = None, !.start = 0]

(* The name under which the log that a broker has counts as in sync. *)
Named(x, id) == <<x, IF Is("in-sync names brokers and no log ids") THEN 1 ELSE id>>
Me(x) == Named(x, br[x].id)

(* Nobody knows the newest version of the state node any more, but who reads it again. *)
Written(brokers) == [x \in Brokers |-> [brokers[x] EXCEPT !.knows = FALSE]]

---------------------------------------------------------------------------
(* Appends, flushes, the watermark *)

Append_(x) ==
    /\ br[x].up /\ br[x].leads > 0 /\ used.records < Records
    /\ br' = [br EXCEPT ![x].log = Append(@, [e |-> br[x].leads, v |-> used.records + 1]),
                        ![x].flushed = IF FlushApart THEN @ ELSE Len(br[x].log) + 1]
    /\ used' = [used EXCEPT !.records = @ + 1]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored>>

UpTo(x, end) == {[at |-> o, e |-> br[x].log[o].e, v |-> br[x].log[o].v] : o \in 1..end}

Flush(x) ==
    /\ br[x].up /\ br[x].flushed < Len(br[x].log)
    /\ br' = [br EXCEPT ![x].flushed = Len(br[x].log)]
    /\ flushed' = IF br[x].leads = node.epoch THEN flushed \cup UpTo(x, Len(br[x].log)) ELSE flushed
    /\ UNCHANGED <<node, acked, ackers, restored, used>>

(* What a member has flushed, as the leader knows it; 0 if it has told nothing in this epoch. *)
EndOf(x, member) ==
    IF member[1] = x
    THEN IF Is("the leader counts what it wrote") THEN Len(br[x].log) ELSE br[x].flushed
    ELSE LET told == br[x].told[member[1]]
         IN IF told = None THEN 0
            ELSE IF Named(member[1], told.id) # member THEN 0 ELSE told.end

Ends(x) == {EndOf(x, member) : member \in br[x].counts}

Lowest(x) == CHOOSE e \in Ends(x) : \A f \in Ends(x) : e <= f

(* Acknowledges what is below. *)
Advance(x) ==
    /\ br[x].up /\ br[x].leads > 0 /\ Lowest(x) > br[x].hw
    /\ br' = [br EXCEPT ![x].hw = Lowest(x)]
    /\ acked' = acked \cup UpTo(x, Lowest(x))
    /\ ackers' = ackers \cup {<<br[x].leads, x>>}
    /\ UNCHANGED <<node, flushed, restored, used>>

---------------------------------------------------------------------------
(* Followers *)

Follow(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ node.leader # x
    /\ br[x].follows # [who |-> node.leader, epoch |-> node.epoch]
    /\ br' = [br EXCEPT
           ![x].follows = [who |-> node.leader, epoch |-> node.epoch],
           ![x].log = IF Is("a follower cuts back to its watermark")
                      THEN SubSeq(@, 1, br[x].hw) ELSE @,
           ![x].flushed = IF Is("a follower cuts back to its watermark")
                          THEN Min(@, br[x].hw) ELSE @]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

EndUpTo(log, e) == Cardinality({o \in 1..Len(log) : log[o].e <= e})
EpochUpTo(log, e) == IF EndUpTo(log, e) = 0 THEN 0 ELSE log[EndUpTo(log, e)].e
Last(log) == IF log = <<>> THEN 0 ELSE log[Len(log)].e

(* The follower names its last epoch and its end. If the leader's epoch history says otherwise, it
   cuts back and asks again; else it gets the next record, and the leader notes what it flushed. *)
Pull(x) ==
    /\ br[x].up /\ br[x].follows # None
    /\ LET l == br[x].follows.who
           mine == br[x].log
           theirs == br[l].log
           epoch == EpochUpTo(theirs, Last(mine))
           end == EndUpTo(theirs, Last(mine))
           diverges == /\ mine # <<>>
                       /\ epoch # Last(mine) \/ end < Len(mine)
                       /\ ~Is("a follower never cuts back")
                       /\ ~Is("a follower cuts back to its watermark")
           to == IF epoch = Last(mine) THEN Min(end, Len(mine)) ELSE Min(EndUpTo(mine, epoch), end)
           new == IF Len(mine) < Len(theirs) THEN Append(mine, theirs[Len(mine) + 1]) ELSE mine
       IN /\ br[l].up /\ br[l].leads > 0
          /\ br[l].leads = br[x].follows.epoch \/ Is("a fetch is not fenced by the epoch")
          /\ IF diverges
             THEN br' = [br EXCEPT ![x].log = SubSeq(mine, 1, to), ![x].flushed = Min(@, to),
                                   ![x].hw = Min(@, to)]
             ELSE /\ Len(mine) <= Len(theirs)
                  /\ br' = [br EXCEPT
                         ![x].log = new,
                         ![x].flushed = IF FlushApart THEN @ ELSE Len(new),
                         ![x].hw = Max(@, Min(Len(new), br[l].hw)),
                         ![l].told[x] = [id |-> br[x].id,
                                         end |-> IF Is("a member tells what it wrote")
                                                 THEN Len(mine) ELSE br[x].flushed]]
    /\ br' # br
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

---------------------------------------------------------------------------
(* The leader changes who is in sync *)

(* ZooKeeper first: the watermark waits for the member until the leader has heard. *)
Drop(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows
    /\ \E member \in node.inSync :
        /\ member[1] # x
        /\ node' = [node EXCEPT !.inSync = @ \ {member}]
    /\ br' = Written(br)
    /\ UNCHANGED <<acked, flushed, ackers, restored, used>>

DropForItself(x) ==
    /\ Is("the leader drops a member for itself before ZooKeeper")
    /\ br[x].up /\ br[x].leads > 0
    /\ \E member \in br[x].counts :
        /\ member[1] # x
        /\ br' = [br EXCEPT ![x].counts = @ \ {member}]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

(* The leader first: the watermark waits for the joiner from before the request is sent. So it need
   not have the leader's end, which moves on: what is below the watermark is enough. But a new
   leader's watermark lags, and all that it had when it took the lead may be acknowledged.
   That the watermark waits for one that keeps up already before this is not a step here: it is an
   Advance that is not taken. *)
TakeIn(x, y) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows /\ x # y
    /\ \A member \in node.inSync : member[1] # y
    /\ br[x].told[y] # None
    /\ \/ br[x].told[y].end >= Max(br[x].hw, br[x].start)
       \/ Is("a joiner is taken in before it has what is acknowledged")
       \/ /\ Is("a joiner is taken in by the watermark of a new leader alone")
          /\ br[x].told[y].end >= br[x].hw
    /\ LET member == Named(y, IF Is("a joiner is taken in by what it told in an earlier life")
                              THEN br[y].id ELSE br[x].told[y].id)
       IN /\ node' = [node EXCEPT !.inSync = @ \cup {member}]
          /\ br' = Written(IF Is("a joiner counts only when its write is heard") THEN br
                           ELSE [br EXCEPT ![x].counts = @ \cup {member}])
    /\ UNCHANGED <<acked, flushed, ackers, restored, used>>

Hear(x) ==
    /\ Sees(x) /\ br[x].leads = node.epoch /\ node.leader = x /\ ~br[x].knows
    /\ br' = [br EXCEPT ![x].counts = node.inSync, ![x].knows = TRUE]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

(* The watermark is noted in the state node now and then. *)
NoteCommitted(x) ==
    /\ Restores /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows /\ br[x].hw > node.committed
    /\ node' = [node EXCEPT !.committed = br[x].hw]
    /\ br' = Written(br)
    /\ UNCHANGED <<acked, flushed, ackers, restored, used>>

---------------------------------------------------------------------------
(* Elections *)

Leading(x, epoch, inSync) ==
    [Written(br) EXCEPT ![x] = [StepDown(@) EXCEPT !.leads = epoch, !.counts = inSync,
                                                   !.knows = TRUE, !.start = Len(br[x].log)]]

(* The leader's broker node is gone, or is of another life: the process has begun anew. *)
LeaderGone == ~Sees(node.leader) \/ br[node.leader].leads # node.epoch

Elect(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ LeaderGone
    /\ used.elections < Elections /\ used' = [used EXCEPT !.elections = @ + 1]
    /\ Me(x) \in node.inSync \/ Is("a broker that is not in sync is elected")
    /\ Len(br[x].log) >= node.committed \/ Is("a restored log takes part in elections")
    /\ LET live == {m \in node.inSync : m[1] # node.leader /\ Sees(m[1]) /\ m = Me(m[1])}
           members == live \cup {Me(x)}
           epoch == IF node.leader = x /\ Is("a restarted leader goes on in its epoch")
                    THEN node.epoch ELSE node.epoch + 1
       IN /\ node' = [node EXCEPT !.leader = x, !.epoch = epoch, !.inSync = members]
          /\ br' = Leading(x, epoch, members)
    /\ flushed' = IF node.leader = x THEN flushed ELSE {}
    /\ UNCHANGED <<acked, ackers, restored>>

(* The leader has stopped appends, and gives its lead to a member that has flushed all of them. The
   module Moves has the request and its reply apart. *)
HandOver(x, y) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ br[x].knows /\ x # y
    /\ used.elections < Elections /\ used' = [used EXCEPT !.elections = @ + 1]
    /\ br[x].told[y] # None
    /\ Named(y, br[x].told[y].id) \in node.inSync
    /\ br[x].told[y].end = Len(br[x].log) \/ Is("the hand-over does not wait for the end")
    /\ node' = [node EXCEPT !.leader = y, !.epoch = @ + 1]
    /\ br' = Written([br EXCEPT ![x] = StepDown(@)])
    /\ UNCHANGED <<acked, flushed, ackers, restored>>

(* It has followed in a lower epoch in this life, so the epoch is new to it. *)
TakeOver(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ br[x].follows # None
    /\ node.leader = x /\ Me(x) \in node.inSync
    /\ br' = [br EXCEPT ![x] = [StepDown(@) EXCEPT !.leads = node.epoch, !.counts = node.inSync,
                                                   !.knows = TRUE, !.start = Len(br[x].log)]]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

StepsDown(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ (node.leader # x \/ node.epoch # br[x].leads)
    /\ br' = [br EXCEPT ![x] = StepDown(@)]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

---------------------------------------------------------------------------
(* Faults *)

Fault == used.faults < Faults /\ used' = [used EXCEPT !.faults = @ + 1]

(* A power cut takes what is not flushed, the end of the process alone takes nothing. *)
Kill(x) ==
    /\ Fault /\ br[x].up
    /\ \E kept \in {IF PageCache THEN 0 ELSE br[x].flushed, Len(br[x].log)} :
        br' = [br EXCEPT ![x] = [StepDown(@) EXCEPT
                  !.up = FALSE, !.cut = FALSE, !.log = SubSeq(@, 1, kept), !.hw = Min(@, kept),
                  !.flushed = Min(@, kept),
                  !.id = IF PageCache /\ ~Is("a log keeps its id after an unclean stop")
                         THEN @ + 1 ELSE @]]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored>>

Start(x) ==
    /\ ~br[x].up
    /\ br' = [br EXCEPT ![x].up = TRUE]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

(* What the leader alone had flushed is lost with its disk, by definition. *)
StartEmpty(x) ==
    /\ Fault /\ ~br[x].up
    /\ br' = [br EXCEPT ![x].up = TRUE, ![x].id = @ + 1, ![x].log = <<>>, ![x].flushed = 0,
                        ![x].hw = 0]
    /\ flushed' = IF node.leader = x THEN {} ELSE flushed
    /\ UNCHANGED <<node, acked, ackers, restored>>

(* An older copy of the disk, with the same log id. *)
StartRestored(x) ==
    /\ Restores /\ Fault /\ ~br[x].up /\ br[x].log # <<>>
    /\ \E kept \in 0..(Len(br[x].log) - 1) :
        br' = [br EXCEPT ![x].up = TRUE, ![x].log = SubSeq(@, 1, kept), ![x].flushed = Min(@, kept),
                         ![x].hw = Min(@, kept)]
    /\ restored' = TRUE
    /\ flushed' = IF node.leader = x THEN {} ELSE flushed
    /\ UNCHANGED <<node, acked, ackers>>

CutOff(x) ==
    /\ Fault /\ Sees(x)
    /\ br' = [br EXCEPT ![x].cut = TRUE]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored>>

Mend(x) ==
    /\ br[x].cut
    /\ br' = [br EXCEPT ![x].cut = FALSE]
    /\ UNCHANGED <<node, acked, flushed, ackers, restored, used>>

---------------------------------------------------------------------------
Next ==
    \E x \in Brokers :
        \/ Append_(x) \/ Flush(x) \/ Advance(x) \/ Follow(x) \/ Pull(x)
        \/ Hear(x) \/ NoteCommitted(x) \/ Elect(x) \/ TakeOver(x) \/ StepsDown(x)
        \/ Kill(x) \/ Start(x) \/ StartEmpty(x) \/ StartRestored(x) \/ CutOff(x) \/ Mend(x)
        \/ \E y \in Brokers : TakeIn(x, y) \/ HandOver(x, y)
        \/ Drop(x) \/ DropForItself(x)

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Brokers)

---------------------------------------------------------------------------
(* What has to hold *)

Leads(x) == br[x].up /\ node.leader = x /\ br[x].leads = node.epoch

Has(x, a) == a.at <= Len(br[x].log) /\ br[x].log[a.at] = [e |-> a.e, v |-> a.v]

(* What is acknowledged stands at its offset with whoever leads. Where an older copy of a disk came
   back, this is so for what is noted in the state node. *)
AcknowledgedStands ==
    \A x \in Brokers : Leads(x) =>
        \A a \in acked : Has(x, a) \/ (restored /\ a.at > node.committed)

(* What a leader alone has flushed stands while it, or whom it gave its lead to, leads. *)
FlushedStands == PageCache \/ \A x \in Brokers : Leads(x) => \A a \in flushed : Has(x, a)

NoOffsetTwice == restored \/ \A a, b \in acked : a.at = b.at => a = b

LogsAgree ==
    \A x, y \in Brokers :
        (br[x].up /\ br[y].up) =>
            LET end == Min(br[x].hw, br[y].hw)
            IN restored \/ SubSeq(br[x].log, 1, end) = SubSeq(br[y].log, 1, end)

OneLeaderAnEpoch == \A a, b \in ackers : a[1] = b[1] => a[2] = b[2]
=============================================================================
