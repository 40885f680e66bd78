package main

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// settlements: each of the four settlements is confirmed and has its effect.
func settlements(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to, from := sender(client, given.Queue), receiver(client, given.Queue)
	sendAll(ctx, to, message("complete"), message("defer"), message("dead"), message("abandon"))
	got := receive(ctx, from, 4, 20*time.Second)
	took := found{
		"complete": seconds(func() error { return from.CompleteMessage(ctx, got[0], nil) }),
		"defer": seconds(func() error {
			colour := map[string]any{"colour": "blue"}
			return from.DeferMessage(ctx, got[1], &azservicebus.DeferMessageOptions{PropertiesToModify: colour})
		}),
		"dead": seconds(func() error {
			return from.DeadLetterMessage(ctx, got[2], &azservicebus.DeadLetterOptions{
				Reason:             pointer("broken"),
				ErrorDescription:   pointer("beyond repair"),
				PropertiesToModify: map[string]any{"shelf": int64(7)},
			})
		}),
		"abandon": seconds(func() error {
			tries := map[string]any{"tries": "one"}
			return from.AbandonMessage(ctx, got[3], &azservicebus.AbandonMessageOptions{PropertiesToModify: tries})
		}),
	}

	again := [][]any{}
	for _, one := range receive(ctx, from, 4, 500*time.Millisecond) {
		again = append(again, []any{string(one.Body), one.DeliveryCount, one.ApplicationProperties["tries"]})
		check(from.CompleteMessage(ctx, one, nil))
	}
	peeked := must(from.PeekMessages(ctx, 10, nil))
	deferred := must(from.ReceiveDeferredMessages(ctx, []int64{*got[1].SequenceNumber}, nil))[0]
	check(from.CompleteMessage(ctx, deferred, nil))
	twice := failure(func() error { return from.CompleteMessage(ctx, deferred, nil) })
	first := pointer(int64(1))
	rest := must(from.PeekMessages(ctx, 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: first}))
	return found{
		"took":     took,
		"again":    again,
		"peeked":   []any{bodies(peeked), peeked[0].State},
		"deferred": []any{string(deferred.Body), deferred.State, deferred.ApplicationProperties["colour"]},
		"twice":    twice,
		"rest":     len(rest),
	}
}

// letters: the dead-letter queue is received from, peeked and settled as any other; deferred messages go there too.
func letters(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to, from := sender(client, given.Queue), receiver(client, given.Queue)
	sendAll(ctx, to, message("plain"), message("deferred"), message("bare"))
	got := receive(ctx, from, 3, 20*time.Second)
	why := &azservicebus.DeadLetterOptions{Reason: pointer("why"), ErrorDescription: pointer("because")}
	check(from.DeadLetterMessage(ctx, got[0], why))
	check(from.DeferMessage(ctx, got[1], nil))
	deferred := must(from.ReceiveDeferredMessages(ctx, []int64{*got[1].SequenceNumber}, nil))[0]
	check(from.DeadLetterMessage(ctx, deferred, why))
	check(from.DeadLetterMessage(ctx, got[2], nil))

	options := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	dead := must(client.NewReceiverForQueue(given.Queue, options))
	peeked := must(dead.PeekMessages(ctx, 10, nil))
	reasons := [][]any{}
	arrived := receive(ctx, dead, 3, 20*time.Second)
	for _, one := range arrived {
		reasons = append(reasons, []any{string(one.Body), one.DeadLetterReason, one.DeadLetterErrorDescription})
	}
	check(dead.CompleteMessage(ctx, arrived[0], nil))
	check(dead.DeferMessage(ctx, arrived[1], nil))
	check(dead.AbandonMessage(ctx, arrived[2], nil))
	again := takeAll(ctx, dead, 1)
	back := must(dead.ReceiveDeferredMessages(ctx, []int64{*arrived[1].SequenceNumber}, nil))
	check(dead.CompleteMessage(ctx, back[0], nil))
	first := &azservicebus.PeekMessagesOptions{FromSequenceNumber: pointer(int64(1))}
	return found{
		"peeked":  bodies(peeked),
		"reasons": reasons,
		"again":   again,
		"back":    bodies(back),
		"rest":    len(must(dead.PeekMessages(ctx, 10, first))) + len(must(from.PeekMessages(ctx, 10, first))),
	}
}

// expiry: a renewal moves the end of a lock; after it the lock is lost, on the link and by management.
func expiry(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	sendAll(ctx, sender(client, given.Queue), message("linked"), message("managed"))
	from := receiver(client, given.Queue)
	got := receive(ctx, from, 2, 20*time.Second)
	linked, managed := got[0], got[1]
	time.Sleep(100 * time.Millisecond)
	before := *linked.LockedUntil
	check(from.RenewMessageLock(ctx, linked, nil))
	moved := linked.LockedUntil.Sub(before).Milliseconds()

	time.Sleep(time.Until(*linked.LockedUntil) + 300*time.Millisecond)
	onLink := failure(func() error { return from.CompleteMessage(ctx, linked, nil) })
	byManagement := failure(func() error {
		return from.CompleteMessage(ctx, &azservicebus.ReceivedMessage{LockToken: managed.LockToken}, nil)
	})
	renewal := failure(func() error { return from.RenewMessageLock(ctx, linked, nil) })
	again := takeAll(ctx, from, 2)
	return found{"moved": moved, "onLink": onLink, "byManagement": byManagement, "renewal": renewal, "again": again}
}

// handed: another client settles by the lock token alone, which the SDK does by management.
func handed(ctx context.Context) found {
	first, second := connect(given.Connection, once), connect(given.Connection, once)
	defer second.Close(ctx)
	defer first.Close(ctx)
	to, from, other := sender(first, given.Queue), receiver(first, given.Queue), receiver(second, given.Queue)
	names := []string{"complete", "abandon", "defer", "dead"}
	for _, name := range names {
		sendAll(ctx, to, message(name))
	}
	got := receive(ctx, from, 4, 20*time.Second)
	token := func(index int) *azservicebus.ReceivedMessage {
		return &azservicebus.ReceivedMessage{LockToken: got[index].LockToken}
	}
	why := &azservicebus.DeadLetterOptions{Reason: pointer("why"), ErrorDescription: pointer("because")}
	renewed := token(0)
	check(other.RenewMessageLock(ctx, renewed, nil))
	check(other.CompleteMessage(ctx, token(0), nil))
	check(other.AbandonMessage(ctx, token(1), nil))
	check(other.DeferMessage(ctx, token(2), nil))
	check(other.DeadLetterMessage(ctx, token(3), why))
	again := receive(ctx, other, 4, 500*time.Millisecond)
	deferred := must(other.ReceiveDeferredMessages(ctx, []int64{*got[2].SequenceNumber}, nil))
	options := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	dead := receive(ctx, must(second.NewReceiverForQueue(given.Queue, options)), 1, 20*time.Second)
	return found{
		"renewed":  time.Until(*renewed.LockedUntil) > 0,
		"again":    bodies(again),
		"deferred": bodies(deferred),
		"dead":     []any{bodies(dead), dead[0].DeadLetterReason},
	}
}
