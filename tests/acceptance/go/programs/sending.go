package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// sending: one message and a batch of 100 arrive as 101 messages.
func sending(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to := sender(client, given.Queue)
	sendAll(ctx, to, message("alone"))
	batch := must(to.NewMessageBatch(ctx, nil))
	for index := range 100 {
		check(batch.AddMessage(message(strconv.Itoa(index)), nil))
	}
	check(to.SendMessageBatch(ctx, batch, nil))
	return found{"bodies": takeAll(ctx, receiver(client, given.Queue), 101)}
}

// away: what the error of a queue whose messaging store is away says, and that a client that may retry gets through.
func away(ctx context.Context) found {
	hasty := connect(given.Connection, once)
	defer hasty.Close(ctx)
	refused := failure(func() error {
		return sender(hasty, given.Queue).SendMessage(ctx, message("refused"), nil)
	})
	patient := connect(given.Connection, azservicebus.RetryOptions{
		MaxRetries: 20, RetryDelay: 250 * time.Millisecond, MaxRetryDelay: 250 * time.Millisecond,
	})
	defer patient.Close(ctx)
	began := time.Now()
	sendAll(ctx, sender(patient, given.Queue), message("waits"))
	took := time.Since(began).Seconds()
	return found{"refused": refused, "took": took, "bodies": takeAll(ctx, receiver(patient, given.Queue), 1)}
}

// sizes: the announced limit fills a batch, more than it is refused, and a megabyte arrives as it was.
func sizes(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to := sender(client, given.Queue)
	batch := must(to.NewMessageBatch(ctx, nil))
	part := &azservicebus.Message{Body: make([]byte, 10_000)}
	added := 0
	for ; ; added++ {
		if err := batch.AddMessage(part, nil); errors.Is(err, azservicebus.ErrMessageTooLarge) {
			break
		} else {
			check(err)
		}
	}
	check(to.SendMessageBatch(ctx, batch, nil))
	arrived := len(takeAll(ctx, receiver(client, given.Queue), added))
	tooLarge := failure(func() error {
		return to.SendMessage(ctx, &azservicebus.Message{Body: make([]byte, 256*1024+1)}, nil)
	})
	afterwards := failure(func() error { return to.SendMessage(ctx, message("small"), nil) })

	megabyte := make([]byte, 1<<20)
	must(rand.Read(megabyte))
	sendAll(ctx, sender(client, given.Large), &azservicebus.Message{Body: megabyte})
	back := receive(ctx, receiver(client, given.Large), 1, 20*time.Second)
	same := len(back) == 1 && sha256.Sum256(back[0].Body) == sha256.Sum256(megabyte)
	return found{"added": added, "arrived": arrived, "tooLarge": tooLarge, "afterwards": afterwards, "same": same}
}

// properties: what a message carries arrives with its types, and with what the broker says of it.
func properties(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	moment := time.Date(2031, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	own := map[string]any{
		"text": "ü", "long": int64(1) << 40, "int": int32(-7), "double": 0.5, "yes": true, "moment": moment,
		"bytes": []byte{0, 255},
	}
	sendAll(ctx, sender(client, given.Queue), &azservicebus.Message{
		Body:                  []byte("body"),
		MessageID:             pointer("an id"),
		ContentType:           pointer("text/plain"),
		CorrelationID:         pointer("correlated"),
		PartitionKey:          pointer("key"),
		ReplyTo:               pointer("reply"),
		ReplyToSessionID:      pointer("reply session"),
		Subject:               pointer("subject"),
		To:                    pointer("to"),
		TimeToLive:            pointer(90 * time.Second),
		ApplicationProperties: own,
	})
	began := time.Now()
	from := receiver(client, given.Queue)
	got := receive(ctx, from, 1, 20*time.Second)[0]
	check(from.CompleteMessage(ctx, got, nil))
	back := got.ApplicationProperties
	text := func(value *string) string {
		if value == nil {
			return "nil"
		}
		return *value
	}
	return found{
		"texts": []string{
			string(got.Body), got.MessageID, text(got.ContentType), text(got.CorrelationID), text(got.PartitionKey),
			text(got.ReplyTo), text(got.ReplyToSessionID), text(got.Subject), text(got.To), text(got.SessionID),
		},
		"own": []bool{
			back["text"] == own["text"], back["long"] == own["long"], back["int"] == own["int"],
			back["double"] == own["double"], back["yes"] == own["yes"], moment.Equal(back["moment"].(time.Time)),
			string(back["bytes"].([]byte)) == "\x00\xff", len(back) == len(own),
		},
		"ttl":        got.TimeToLive.Seconds(),
		"deliveries": got.DeliveryCount,
		"age":        began.Sub(*got.EnqueuedTime).Seconds(),
		"locked":     got.LockedUntil.Sub(began).Seconds(),
		"expires":    got.ExpiresAt.Sub(*got.EnqueuedTime).Seconds(),
		"number":     *got.SequenceNumber,
		"state":      got.State,
	}
}
