------------------------------ MODULE Staging ------------------------------
(* One write that is staged, decided once, and published, while the lead changes.

   Its share of the partition is staged with the leader and pulled by followers; it consists of two
   record batches, which are copied to the end of the log one by one. The decision stands in
   ZooKeeper. It checks the token of the broker that promised to have the share, and nothing of the
   partition. Appends, flushes and log ids are as in the module Replication, and taken as one step. *)

EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Brokers, None,
          First,        \* the brokers that are in sync at the beginning
          Records,      \* how many other records are appended at most
          Faults,       \* how many kills and cuts from ZooKeeper there are
          Leads,        \* how often the lead changes
          Mutant        \* the rule that is broken, or "none"

VARIABLES node,     \* [leader, epoch, inSync]: the state node
          token,    \* of each broker, in ZooKeeper
          promises, \* [by, token]: what the driver was told, of which it may use any
          decided,
          br,       \* each broker
          seen,     \* [at, e, p]: what stood below a leader's watermark
          used      \* [staged, records, faults, leads]

vars == <<node, token, promises, decided, br, seen, used>>

Is(mutant) == Mutant = mutant

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b

NobodyTold == [x \in Brokers |-> None]

Init == \E first \in First :
    /\ node = [leader |-> first, epoch |-> 1, inSync |-> First]
    /\ token = [x \in Brokers |-> 1]
    /\ promises = {} /\ decided = FALSE
    /\ br = [x \in Brokers |->
             [up |-> TRUE, cut |-> FALSE,
              log |-> <<>>,             \* of [e, p]; p is a part of the write, 1 or 2, or 0
              staged |-> FALSE,         \* whether it has the share, flushed
              copied |-> 0,             \* how many parts it has copied in this life
              hw |-> 0,
              conceals |-> 0,           \* the offset of the write's first record, or 0
              leads |-> IF x = first THEN 1 ELSE 0,
              told |-> NobodyTold,      \* what each follower told in this epoch: [end, staged]
              follows |-> IF x = first THEN 0 ELSE 1]]
    /\ seen = {}
    /\ used = [staged |-> FALSE, records |-> 0, faults |-> 0, leads |-> 0]

Sees(x) == br[x].up /\ ~br[x].cut
Serves(x) == br[x].up /\ br[x].leads > 0
Current(x) == br[x].leads = node.epoch /\ node.leader = x

StepDown(r) == [r EXCEPT !.leads = 0, !.told = NobodyTold, !.follows = 0, !.conceals = 0,
                         !.copied = 0]

Parts(x) == {o \in 1..Len(br[x].log) : br[x].log[o].p > 0}
HasPart(x, p) == \E o \in Parts(x) : br[x].log[o].p = p

---------------------------------------------------------------------------
(* Staging, promise, decision *)

Stage(x) ==
    /\ Serves(x) /\ ~used.staged
    /\ br' = [br EXCEPT ![x].staged = TRUE]
    /\ used' = [used EXCEPT !.staged = TRUE]
    /\ UNCHANGED <<node, token, promises, decided, seen>>

(* All in-sync members have flushed the share. *)
Prepare(x) ==
    /\ Serves(x) /\ Current(x) /\ br[x].staged
    /\ \A y \in node.inSync \ {x} :
        Is("the leader promises for itself alone") \/ (br[x].told[y] # None /\ br[x].told[y].staged)
    /\ promises' = promises \cup {[by |-> x, token |-> token[x]]}
    /\ promises' # promises
    /\ UNCHANGED <<node, token, decided, br, seen, used>>

Decide ==
    /\ ~decided
    /\ \E promise \in promises :
        promise.token = token[promise.by] \/ Is("the decision does not check the token")
    /\ decided' = TRUE
    /\ UNCHANGED <<node, token, promises, br, seen, used>>

(* Whoever lets a share go writes another token first, and then reads what is decided. *)
Expire(x) ==
    /\ Sees(x) /\ br[x].staged
    /\ br[x].leads > 0 \/ Is("a follower lets a share go by itself")
    /\ ~decided
    /\ token' = [token EXCEPT ![x] = @ + 1]
    /\ br' = [br EXCEPT ![x].staged = FALSE]
    /\ UNCHANGED <<node, promises, decided, seen, used>>

---------------------------------------------------------------------------
(* The log *)

Append_(x) ==
    /\ Serves(x) /\ used.records < Records
    /\ br' = [br EXCEPT ![x].log = Append(@, [e |-> br[x].leads, p |-> 0])]
    /\ used' = [used EXCEPT !.records = @ + 1]
    /\ UNCHANGED <<node, token, promises, decided, seen>>

(* The log's own memory says which parts are there. *)
Publish(x) ==
    /\ Serves(x) /\ Sees(x) /\ Current(x) /\ decided /\ br[x].staged
    /\ LET there == IF Is("publishing goes by what this life has copied") THEN br[x].copied
                    ELSE IF HasPart(x, 2) THEN 2 ELSE IF HasPart(x, 1) THEN 1 ELSE 0
       IN /\ there < 2
          /\ br' = [br EXCEPT
                 ![x].log = Append(@, [e |-> br[x].leads, p |-> there + 1]),
                 ![x].copied = there + 1,
                 ![x].conceals = IF there = 0 THEN Len(br[x].log) + 1 ELSE @]
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

(* The share is let go when what was published is below the watermark. *)
LetGo(x) ==
    /\ Serves(x) /\ br[x].staged /\ HasPart(x, 2)
    /\ (\A o \in Parts(x) : o <= br[x].hw) \/ Is("a share is let go once the leader has published")
    /\ br' = [br EXCEPT ![x].staged = FALSE]
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

(* The watermark stands at the write's first record until all members have all of it. *)
Advance(x) ==
    /\ Serves(x) /\ Current(x)
    /\ \A y \in node.inSync \ {x} : br[x].told[y] # None
    /\ LET ends == {Len(br[x].log)} \cup {br[x].told[y].end : y \in node.inSync \ {x}}
           lowest == CHOOSE e \in ends : \A f \in ends : e <= f
           whole == \E o \in Parts(x) :
                        /\ br[x].log[o].p = 2
                        /\ o <= lowest \/ Is("a write is concealed until the leader has all of it")
           to == IF br[x].conceals > 0 /\ ~whole THEN Min(lowest, br[x].conceals - 1) ELSE lowest
       IN /\ to > br[x].hw
          /\ br' = [br EXCEPT ![x].hw = to]
          /\ seen' = seen \cup {[at |-> o, e |-> br[x].log[o].e, p |-> br[x].log[o].p] : o \in 1..to}
    /\ UNCHANGED <<node, token, promises, decided, used>>

EndUpTo(log, e) == Cardinality({o \in 1..Len(log) : log[o].e <= e})
EpochUpTo(log, e) == IF EndUpTo(log, e) = 0 THEN 0 ELSE log[EndUpTo(log, e)].e
Last(log) == IF log = <<>> THEN 0 ELSE log[Len(log)].e

Follow(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ node.leader # x /\ br[x].follows # node.epoch
    /\ br' = [br EXCEPT ![x].follows = node.epoch]
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

(* The follower has of open writes what the leader has: it gets their bytes, and lets go with it. It
   takes the leader's watermark when its copy has come that far, and until then keeps the one it
   has: below any other end of its copy a write may stand by half. *)
Pull(x, l) ==
    /\ br[x].up /\ br[x].leads = 0 /\ br[x].follows > 0
    /\ br[l].up /\ br[l].leads = br[x].follows
    /\ LET mine == br[x].log
           theirs == br[l].log
           epoch == EpochUpTo(theirs, Last(mine))
           end == EndUpTo(theirs, Last(mine))
           diverges == mine # <<>> /\ (epoch # Last(mine) \/ end < Len(mine))
           to == IF epoch = Last(mine) THEN Min(end, Len(mine)) ELSE Min(EndUpTo(mine, epoch), end)
           new == IF Len(mine) < Len(theirs) THEN Append(mine, theirs[Len(mine) + 1]) ELSE mine
       IN IF diverges
          THEN br' = [br EXCEPT ![x].log = SubSeq(mine, 1, to), ![x].hw = Min(@, to)]
          ELSE br' = [br EXCEPT
                   ![x].log = new,
                   ![x].staged = br[l].staged,
                   ![x].hw = IF Len(new) >= br[l].hw THEN Max(@, br[l].hw)
                             ELSE IF Is("a follower's watermark stands where its copy does")
                             THEN Max(@, Len(new)) ELSE @,
                   ![l].told[x] = [end |-> Len(mine), staged |-> br[x].staged]]
    /\ br' # br
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

---------------------------------------------------------------------------
(* Who leads, and who is in sync *)

(* The new leader conceals a write from the first record that it has of it, until all is there. *)
Taken(r, epoch) ==
    LET first == {o \in 1..Len(r.log) : r.log[o].p = 1}
    IN [StepDown(r) EXCEPT
           !.leads = epoch,
           !.conceals = IF first = {} \/ Is("a new leader conceals nothing") THEN 0
                        ELSE CHOOSE o \in first : TRUE]

(* What the old leader promised ends with its lead, in the same transaction. *)
PromiseEnds(x) ==
    token' = IF Is("a promise outlives the lead") THEN token ELSE [token EXCEPT ![x] = @ + 1]

Change == used.leads < Leads /\ used' = [used EXCEPT !.leads = @ + 1]

Elect(x) ==
    /\ Change /\ Sees(x) /\ br[x].leads = 0 /\ x \in node.inSync
    /\ ~Sees(node.leader) \/ br[node.leader].leads # node.epoch
    /\ node' = [leader |-> x, epoch |-> node.epoch + 1,
                inSync |-> {y \in node.inSync : y = x \/ (Sees(y) /\ y # node.leader)}]
    /\ br' = [br EXCEPT ![x] = Taken(@, node.epoch + 1)]
    /\ PromiseEnds(node.leader)
    /\ UNCHANGED <<promises, decided, seen>>

HasAll(x, y) ==
    /\ br[x].told[y] # None
    /\ br[x].told[y].end = Len(br[x].log)
    /\ \/ br[x].told[y].staged = br[x].staged
       \/ Is("who joins or gets the lead may lack staged bytes")

(* To a member, or in a move of the only replica to the target. *)
HandOver(x, y) ==
    /\ Change /\ Sees(x) /\ Serves(x) /\ Current(x) /\ x # y /\ HasAll(x, y)
    /\ y \in node.inSync \/ node.inSync = {x}
    /\ node' = [leader |-> y, epoch |-> node.epoch + 1,
                inSync |-> IF y \in node.inSync THEN node.inSync ELSE {y}]
    /\ br' = [br EXCEPT ![x] = StepDown(@)]
    /\ PromiseEnds(x)
    /\ UNCHANGED <<promises, decided, seen>>

TakeOver(x) ==
    /\ Sees(x) /\ br[x].leads = 0 /\ br[x].follows > 0 /\ node.leader = x
    /\ br' = [br EXCEPT ![x] = Taken(@, node.epoch)]
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

StepsDown(x) ==
    /\ Sees(x) /\ br[x].leads > 0 /\ ~Current(x)
    /\ br' = [br EXCEPT ![x] = StepDown(@)]
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

Drop(x) ==
    /\ Sees(x) /\ Serves(x) /\ Current(x)
    /\ \E y \in node.inSync \ {x} : node' = [node EXCEPT !.inSync = @ \ {y}]
    /\ UNCHANGED <<token, promises, decided, br, seen, used>>

TakeIn(x, y) ==
    /\ Sees(x) /\ Serves(x) /\ Current(x) /\ y \notin node.inSync /\ HasAll(x, y)
    /\ node' = [node EXCEPT !.inSync = @ \cup {y}]
    /\ UNCHANGED <<token, promises, decided, br, seen, used>>

---------------------------------------------------------------------------
(* Faults *)

Fault == used.faults < Faults /\ used' = [used EXCEPT !.faults = @ + 1]

Kill(x) ==
    /\ Fault /\ br[x].up
    /\ br' = [br EXCEPT ![x] = [StepDown(@) EXCEPT !.up = FALSE, !.cut = FALSE]]
    /\ UNCHANGED <<node, token, promises, decided, seen>>

(* A process begins with a new token. *)
Start(x) ==
    /\ ~br[x].up
    /\ br' = [br EXCEPT ![x].up = TRUE]
    /\ token' = [token EXCEPT ![x] = @ + 1]
    /\ UNCHANGED <<node, promises, decided, seen, used>>

CutOff(x) ==
    /\ Fault /\ Sees(x)
    /\ br' = [br EXCEPT ![x].cut = TRUE]
    /\ UNCHANGED <<node, token, promises, decided, seen>>

Mend(x) ==
    /\ br[x].cut
    /\ br' = [br EXCEPT ![x].cut = FALSE]
    /\ UNCHANGED <<node, token, promises, decided, seen, used>>

---------------------------------------------------------------------------
Next ==
    \/ \E x \in Brokers :
        \/ Stage(x) \/ Prepare(x) \/ Expire(x) \/ Append_(x) \/ Publish(x) \/ LetGo(x) \/ Advance(x)
        \/ Follow(x) \/ Elect(x) \/ TakeOver(x) \/ StepsDown(x) \/ Drop(x)
        \/ Kill(x) \/ Start(x) \/ CutOff(x) \/ Mend(x)
        \/ \E y \in Brokers \ {x} : Pull(x, y) \/ HandOver(x, y) \/ TakeIn(x, y)
    \/ Decide

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* What has to hold *)

LeadsNow(x) == br[x].up /\ Current(x)

(* A decided write can be published: whoever leads has the share, or all of it in its log. *)
DecidedIsThere ==
    decided => \A x \in Brokers : LeadsNow(x) => br[x].staged \/ (HasPart(x, 1) /\ HasPart(x, 2))

(* Nothing of it is in a log before that. *)
NothingUndecided == decided \/ \A x \in Brokers : Parts(x) = {}

PublishedOnce ==
    \A x \in Brokers : LeadsNow(x) =>
        \A o, q \in Parts(x) : br[x].log[o].p = br[x].log[q].p => o = q

SeesWhole(x) == LET below == {br[x].log[o].p : o \in 1..br[x].hw} \ {0}
                IN below = {} \/ below = {1, 2}

(* Readers see all of it, or nothing. *)
SeenWhole == \A x \in Brokers : LeadsNow(x) => SeesWhole(x)

(* So do readers of followers, if there are any one day. *)
CopiesWhole == \A x \in Brokers : br[x].up => SeesWhole(x)

SeenStands ==
    \A x \in Brokers : LeadsNow(x) =>
        \A s \in seen : s.at <= Len(br[x].log) /\ br[x].log[s.at] = [e |-> s.e, p |-> s.p]
=============================================================================
