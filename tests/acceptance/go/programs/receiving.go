package main

import (
	"context"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// short: a receive that gets less than it asked for leaves credit behind. What that brings between two calls the SDK
// gives back (released), and it is there for the next call, uncounted.
func short(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	from := receiver(client, given.Queue)
	nothing := seconds(func() error {
		if got := receive(ctx, from, 10, 300*time.Millisecond); len(got) > 0 {
			panic("the queue is not empty")
		}
		return nil
	})
	to := sender(client, given.Queue)
	sendAll(ctx, to, message("0"), message("1"), message("2"))
	time.Sleep(200 * time.Millisecond)
	got := receive(ctx, from, 3, 20*time.Second)
	counts := []uint32{}
	for _, one := range got {
		counts = append(counts, one.DeliveryCount)
		check(from.CompleteMessage(ctx, one, nil))
	}
	return found{"nothing": nothing, "bodies": bodies(got), "counts": counts, "rest": len(must(from.PeekMessages(ctx, 1, nil)))}
}

// removing: receive-and-delete leaves nothing behind, and what a closed receiver still had is read from it.
func removing(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to := sender(client, given.Queue)
	for index := range 6 {
		sendAll(ctx, to, message(strconv.Itoa(index)))
	}
	options := &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}
	from := must(client.NewReceiverForQueue(given.Queue, options))
	got := bodies(receive(ctx, from, 6, 20*time.Second))
	settling := failure(func() error {
		return from.CompleteMessage(ctx, &azservicebus.ReceivedMessage{}, nil)
	})
	check(from.Close(ctx))
	rest := must(receiver(client, given.Queue).PeekMessages(ctx, 1, nil))
	return found{"bodies": got, "rest": len(rest), "settling": settling.Text}
}

// numbers: peek, schedule, cancel, and receiving by number.
func numbers(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to, from := sender(client, given.Queue), receiver(client, given.Queue)
	nothing := must(from.PeekMessages(ctx, 5, nil))

	due := time.Now().Add(2 * time.Second)
	cancelled := must(to.ScheduleMessages(ctx, []*azservicebus.Message{message("cancelled")}, due, nil))
	both := []*azservicebus.Message{message("one"), message("two")}
	scheduled := must(to.ScheduleMessages(ctx, both, due, nil))
	waiting := [][]any{}
	for _, one := range must(from.PeekMessages(ctx, 10, nil)) {
		waiting = append(waiting, []any{string(one.Body), one.State, one.ScheduledEnqueueTime.UnixMilli() == due.UnixMilli()})
	}
	check(to.CancelScheduledMessages(ctx, cancelled, nil))
	cancelledTwice := failure(func() error { return to.CancelScheduledMessages(ctx, cancelled, nil) })
	early := receive(ctx, from, 1, 300*time.Millisecond)

	first := receive(ctx, from, 1, 20*time.Second)[0]
	late := time.Since(due).Seconds()
	check(from.CompleteMessage(ctx, first, nil))
	got := append([]string{string(first.Body)}, takeAll(ctx, from, 1)...)
	unknown := failure(func() error {
		_, err := from.ReceiveDeferredMessages(ctx, []int64{123_456}, nil)
		return err
	})

	// A receiver goes on peeking where it was; another number starts over.
	for index := range 5 {
		sendAll(ctx, to, message(strconv.Itoa(index)))
	}
	pages := [][]string{}
	for range 3 {
		pages = append(pages, bodies(must(from.PeekMessages(ctx, 2, nil))))
	}
	over := must(from.PeekMessages(ctx, 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: pointer(int64(1))}))
	return found{
		"nothing":        len(nothing),
		"waiting":        waiting,
		"distinct":       cancelled[0] != scheduled[0] && scheduled[0] != scheduled[1],
		"cancelledTwice": cancelledTwice,
		"early":          len(early),
		"late":           late,
		"bodies":         got,
		"unknown":        unknown,
		"pages":          pages,
		"over":           bodies(over),
	}
}
