package main

import (
	"context"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

func inSession(session string, body string) *azservicebus.Message {
	made := message(body)
	made.SessionID = &session
	return made
}

// sessions: a named session is received in order and settled in every way, and keeps a state.
func sessions(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	to := sender(client, given.Queue)
	for _, body := range []string{"complete", "defer", "dead", "abandon"} {
		sendAll(ctx, to, inSession("a", body), inSession("", "other "+body))
	}
	session := must(client.AcceptSessionForQueue(ctx, given.Queue, "a", nil))
	got := receive(ctx, session, 4, 20*time.Second)
	ids := []string{session.SessionID()}
	for _, one := range got {
		ids = append(ids, *one.SessionID)
	}
	check(session.CompleteMessage(ctx, got[0], nil))
	check(session.DeferMessage(ctx, got[1], nil))
	why := &azservicebus.DeadLetterOptions{Reason: pointer("why"), ErrorDescription: pointer("because")}
	check(session.DeadLetterMessage(ctx, got[2], why))
	check(session.AbandonMessage(ctx, got[3], nil))
	peeked := must(session.PeekMessages(ctx, 10, nil))
	again := takeAll(ctx, session, 1)
	deferred := must(session.ReceiveDeferredMessages(ctx, []int64{*got[1].SequenceNumber}, nil))
	check(session.CompleteMessage(ctx, deferred[0], nil))

	before := session.LockedUntil()
	time.Sleep(50 * time.Millisecond)
	check(session.RenewSessionLock(ctx, nil))
	renewed := session.LockedUntil().Sub(before).Milliseconds()

	states := []string{string(must(session.GetSessionState(ctx, nil)))}
	check(session.SetSessionState(ctx, []byte("half way"), nil))
	check(session.Close(ctx))
	// The state outlives the lock, which is free as soon as the link is closed.
	session = must(client.AcceptSessionForQueue(ctx, given.Queue, "a", nil))
	states = append(states, string(must(session.GetSessionState(ctx, nil))))
	check(session.SetSessionState(ctx, nil, nil))
	states = append(states, string(must(session.GetSessionState(ctx, nil))))
	check(session.Close(ctx))

	nameless := must(client.AcceptSessionForQueue(ctx, given.Queue, "", nil))
	other := takeAll(ctx, nameless, 4)
	check(nameless.Close(ctx))
	options := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	dead := takeAll(ctx, must(client.NewReceiverForQueue(given.Queue, options)), 1)
	return found{
		"bodies":   bodies(got),
		"ids":      ids,
		"locked":   before.Sub(time.Now()) > 0,
		"renewed":  renewed,
		"peeked":   bodies(peeked),
		"again":    again,
		"deferred": bodies(deferred),
		"states":   states,
		"other":    other,
		"dead":     dead,
	}
}

// anonymous: the next session is one that has messages and that nobody holds; with none left the wait ends in time.
func anonymous(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	sendAll(ctx, sender(client, given.Queue), inSession("a", "1"), inSession("b", "2"), inSession("a", "3"))
	accepted := [][]string{}
	for _, number := range []int{2, 1} {
		session := must(client.AcceptNextSessionForQueue(ctx, given.Queue, nil))
		got := receive(ctx, session, number, 20*time.Second)
		accepted = append(accepted, append([]string{session.SessionID()}, bodies(got)...))
		for _, one := range got {
			check(session.CompleteMessage(ctx, one, nil))
		}
	}
	wait := func(limit time.Duration) problem {
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return failure(func() error {
			_, err := client.AcceptNextSessionForQueue(limited, given.Queue, nil)
			return err
		})
	}
	none := wait(2 * time.Second)
	// On a busy machine the client's own timer may end first now and then; not each time.
	for tries := 1; none.Code != "timeout" && tries < 5; tries++ {
		none = wait(2 * time.Second)
	}

	// A client that waits is given the session as soon as there is one; others use the connection meanwhile.
	late := make(chan time.Time, 1)
	go func() {
		session := must(client.AcceptNextSessionForQueue(ctx, given.Queue, nil))
		late <- time.Now()
		check(session.Close(ctx))
	}()
	time.Sleep(300 * time.Millisecond)
	sendAll(ctx, sender(client, given.Queue), inSession("c", "4"))
	sent := time.Now()
	return found{"accepted": accepted, "none": none, "late": (<-late).Sub(sent).Seconds()}
}

// held: a session has one receiver; another is refused until that one closes, and its lock ends by itself.
func held(ctx context.Context) found {
	client, other := connect(given.Connection, once), connect(given.Connection, once)
	defer other.Close(ctx)
	defer client.Close(ctx)
	sendAll(ctx, sender(client, given.Queue), inSession("a", "1"), inSession("a", "2"), inSession("a", "3"))
	session := must(client.AcceptSessionForQueue(ctx, given.Queue, "a", nil))
	got := receive(ctx, session, 2, 20*time.Second)
	accept := func() error {
		taken, err := other.AcceptSessionForQueue(ctx, given.Queue, "a", nil)
		if err == nil {
			session = taken
		}
		return err
	}
	refused := failure(accept)
	first := session
	check(first.CompleteMessage(ctx, got[0], nil))
	check(first.Close(ctx))
	free := failure(accept)
	heir := receive(ctx, session, 2, 20*time.Second)

	time.Sleep(time.Until(session.LockedUntil()) + 300*time.Millisecond)
	renewal := failure(func() error { return session.RenewSessionLock(ctx, nil) })
	// The SDK would accept the session anew, after 4 seconds.
	settlement := failure(func() error {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return session.CompleteMessage(limited, heir[0], nil)
	})
	// Says why the broker closed the link already.
	closing := failure(func() error { return session.Close(ctx) })
	again := must(client.AcceptSessionForQueue(ctx, given.Queue, "a", nil))
	return found{
		"refused":    refused,
		"free":       free,
		"heir":       bodies(heir),
		"renewal":    renewal,
		"settlement": settlement,
		"closing":    closing,
		"again":      takeAll(ctx, again, 2),
	}
}

// listed: the ids of the sessions that have messages or a state, in pages of a hundred.
func listed(ctx context.Context) found {
	client := connect(given.Connection, once)
	defer client.Close(ctx)
	list := func(options *azservicebus.ListSessionsOptions) (ids []string) {
		for pager := client.NewListSessionsForQueuePager(given.Queue, options); pager.More(); {
			ids = append(ids, must(pager.NextPage(ctx)).Sessions...)
		}
		slices.Sort(ids)
		return ids
	}
	nothing := len(list(nil))
	to := sender(client, given.Queue)
	wanted := []string{}
	for index := range 120 {
		id := string([]rune{'a' + rune(index/26), 'a' + rune(index%26)})
		wanted = append(wanted, id)
		sendAll(ctx, to, inSession(id, "body of "+id))
	}
	began := time.Now().Add(-time.Second)
	session := must(client.AcceptSessionForQueue(ctx, given.Queue, "ab", nil))
	check(session.SetSessionState(ctx, []byte("state"), nil))
	stated := list(&azservicebus.ListSessionsOptions{SessionStateUpdatedAfter: &began})
	return found{"nothing": nothing, "all": slices.Equal(list(nil), wanted), "stated": stated}
}
